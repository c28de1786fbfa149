"""What a model was asked about the questions or answers of a store: one table for each block, or for each part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.hashing import canonical_json
from extract.policy import differences
from extract.store.files import Damaged, is_finished, shown
from extract.store.parquet import ASKED_QUESTIONS_SCHEMA, ASKED_SAMPLES_SCHEMA, read_table, write_arrow
from extract.store.provenance import stamp_of
from extract.store.samples import Answers
from extract.store.shards import Place, Scope, check_name, folder_names, scope_of, stem_of
from extract.store.validate import check_asked

_SCHEMAS: dict[Scope, pa.Schema] = {"question": ASKED_QUESTIONS_SCHEMA, "sample": ASKED_SAMPLES_SCHEMA}


def asked_schema(scope: Scope, how: dict[str, Any]) -> pa.Schema:
    """Columns of an asked table, and `how` it was asked (model, prompts, options; JSON types) in the metadata."""
    return _SCHEMAS[scope].with_metadata({"how": canonical_json(how)})


class AskedFiles(Answers):
    """Asked tables on disk."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        super().__init__(path, identity)
        self._how: dict[tuple[str, Scope], dict[str, Any]] = {}  # of the baselines of which a table was read

    def asked_names(self, scope: Scope = "question") -> list[str]:
        """Names of the baselines of which the store holds a table of the questions, or of the answers."""
        names = folder_names(self.path / "asked", "baseline")
        return [name for name in names if self._answered(name, scope)]

    def unasked(self, baseline: str, scope: Scope = "question") -> list[Place]:
        """Blocks, or parts, without a baseline's table."""
        return [place for place in self.places(scope) if not is_finished(self.asked_file(baseline, place))]

    def write_asked(self, baseline: str, place: Place, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
        """Keep what a model was asked about a block's questions, in their order, or about a part's answers.

        Args:
            baseline: Name of the baseline.
            place: Number of the block, or the part, whose samples are there.
            rows: One a question, or one an answer.
            schema: As `asked_schema` makes it.

        Raises:
            InputError: The baseline's other tables were asked otherwise, or the rows are not those of the place.
        """
        path, how = self.asked_file(baseline, place), json.loads(schema.metadata[b"how"])
        self.check_how(baseline, scope_of(place), how, path)
        of = canonical_json(stamp_of(self, place, path, baseline=baseline))
        table = pa.Table.from_pylist(rows, schema.with_metadata({"how": canonical_json(how), "of": of}))
        check_asked(table, place, self.ids(place), path)
        write_arrow(path, table)
        self._how.setdefault((baseline, scope_of(place)), how)

    def check_how(self, baseline: str, scope: Scope, how: dict[str, Any], beside: Path | None = None) -> None:
        """Refuse to ask otherwise than a baseline was asked so far, naming what differs.

        Args:
            baseline: Name of the baseline.
            scope: What its rows are.
            how: Model, prompts, options.
            beside: A file that is going to be written and is not looked at.

        Raises:
            InputError: It differs.
        """
        held = self._held_how(baseline, scope, beside)
        if held is not None and held != json.loads(canonical_json(how)):
            raise InputError(
                f"Expected {baseline!r} to be asked as it was begun in {str(self.path)!r}, but this run differs in {'; '.join(differences(held, how))}. Use the same settings, or delete {str(self._folder(baseline))!r} to ask anew."
            )

    def how(self, baseline: str, scope: Scope) -> dict[str, Any] | None:
        """How a baseline was asked so far, by the first table that is as it was written; None without any."""
        return self._held_how(baseline, scope, None)

    def _held_how(self, baseline: str, scope: Scope, beside: Path | None) -> dict[str, Any] | None:
        for place in self._answered(baseline, scope) if (baseline, scope) not in self._how else []:
            if self.asked_file(baseline, place) == beside:
                continue
            try:
                self.asked_table(baseline, place)
                break
            except Damaged:  # it is going to be made again
                continue
        return self._how.get((baseline, scope))

    def asked(self, baseline: str, scope: Scope = "question") -> pa.Table:
        """A baseline's table over all questions, in their order, or over all answers, by block, part, question and sample.

        Its metadata holds `how` it was asked, as JSON.

        Raises:
            InputError: The store does not hold it for every block or part, or a table is damaged or was asked otherwise.
        """
        places, missing = self.places(scope), self.unasked(baseline, scope)
        if missing or not places:
            raise InputError(
                f"Expected the store {str(self.path)!r} to hold what {baseline!r} asks of the {scope}s, but {len(missing)} of {len(places)} {'blocks' if scope == 'question' else 'parts'} lack it (asked there: {', '.join(self.asked_names(scope)) or 'nothing'}). Run `python -m extract ask --store {self.path} --baselines [{baseline}]`."
            )
        tables = [self.asked_table(baseline, place) for place in places]
        return pa.concat_tables(tables).replace_schema_metadata({"how": canonical_json(self._how[baseline, scope])})

    def asked_table(self, baseline: str, place: Place) -> pa.Table:
        """A baseline's table of a block or part.

        Raises:
            Damaged: It is not as it was written, of another place, or asked otherwise than the first one that was read.
        """
        path, scope = self.asked_file(baseline, place), scope_of(place)
        table = read_table(path, self.path, _SCHEMAS[scope], self.n_rows(place))
        how, of = (_stated(table, key) for key in (b"how", b"of"))
        stamp = stamp_of(self, place, path, baseline=baseline)
        if of != stamp:
            raise Damaged(path, f"its metadata says {shown(of)} where {canonical_json(stamp)} belongs")
        if not isinstance(how, dict):
            raise Damaged(path, f"its metadata says {shown(how)} of how it was asked")
        check_asked(table, place, self.ids(place), path)
        first = self._how.setdefault((baseline, scope), how)
        if how != first:
            raise Damaged(path, f"it was asked otherwise than another table: {'; '.join(differences(how, first))}")
        return table.replace_schema_metadata(None)

    def _answered(self, baseline: str, scope: Scope) -> list[Place]:
        return [place for place in self.places(scope) if is_finished(self.asked_file(baseline, place))]

    def asked_file(self, baseline: str, place: Place) -> Path:
        """Where a baseline's table of a block or part is, or will be."""
        return self._folder(baseline) / f"{stem_of(place)}.parquet"

    def _folder(self, baseline: str) -> Path:
        return self.path / "asked" / check_name(baseline, "baseline")


def _stated(table: pa.Table, key: bytes) -> Any:
    """A JSON value of a table's metadata; None where there is none."""
    try:
        return json.loads((table.schema.metadata or {}).get(key, b"null"))
    except (ValueError, RecursionError):
        return None
