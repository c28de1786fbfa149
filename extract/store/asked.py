"""Asked baselines of a store: one Parquet file for each baseline and shard."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.hashing import canonical_json
from extract.policy import differences
from extract.store.files import Damaged, is_finished
from extract.store.folder import StoreFolder
from extract.store.parquet import ASKED_QUESTIONS_SCHEMA, ASKED_SAMPLES_SCHEMA, read_table, write_table
from extract.store.samples import check_keys
from extract.store.shards import SampleRange, Scope, Shard, check_name, folder_names
from extract.text import shown

_SCHEMAS: dict[Scope, pa.Schema] = {"question": ASKED_QUESTIONS_SCHEMA, "sample": ASKED_SAMPLES_SCHEMA}


class Asked:
    """Asked tables on disk. The settings of a baseline (model, prompts, options) are the same in all of its tables.

    Args:
        folder: The store.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._settings: dict[tuple[str, Scope], dict[str, Any]] = {}  # of the tables that were read

    def names(self, scope: Scope = "question") -> list[str]:
        """Names of the baselines of which the store holds a table of the questions, or of the answers."""
        names = folder_names(self._folder.path / "asked", "baseline")
        return [name for name in names if self._finished(name, scope)]

    def missing(self, baseline: str, scope: Scope = "question") -> list[Shard]:
        """Shards without a baseline's table."""
        return [shard for shard in self._folder.shards(scope) if not is_finished(self.file(baseline, shard))]

    def file(self, baseline: str, shard: Shard) -> Path:
        """Where a baseline's table of a shard is, or will be."""
        return self._folder.path / "asked" / check_name(baseline, "baseline") / f"{shard.stem}.parquet"

    def write(self, baseline: str, shard: Shard, rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        """Write a baseline's table of a shard.

        Args:
            baseline: Name of the baseline.
            shard: The questions or answers that were asked about.
            rows: One row for each question or answer, in the columns of `ASKED_QUESTIONS_SCHEMA` or
                `ASKED_SAMPLES_SCHEMA`.
            settings: Model, prompts and options; JSON types.

        Raises:
            InputError: The baseline's other tables have other settings.
        """
        file = self.file(baseline, shard)
        self.check_settings(baseline, shard.scope, settings, exclude=file)
        provenance = canonical_json(self._folder.provenance(shard, file, baseline=baseline))
        metadata = {"how": canonical_json(settings), "of": provenance}
        write_table(file, rows, _SCHEMAS[shard.scope].with_metadata(metadata))
        self._settings.setdefault((baseline, shard.scope), settings)

    def check_settings(
        self, baseline: str, scope: Scope, settings: dict[str, Any], exclude: Path | None = None
    ) -> None:
        """Refuse settings other than those of a baseline's tables.

        Raises:
            InputError: The settings differ.
        """
        self._folder.check_settings(f"asked/{baseline}", self.settings(baseline, scope, exclude), settings)

    def settings(self, baseline: str, scope: Scope, exclude: Path | None = None) -> dict[str, Any] | None:
        """Settings of a baseline's tables, from the first one that is not damaged; None without any."""
        if (baseline, scope) not in self._settings:
            for shard in self._finished(baseline, scope):
                if self.file(baseline, shard) != exclude:
                    with suppress(Damaged):  # it will be made again
                        self.read_shard(baseline, shard)
                        break
        return self._settings.get((baseline, scope))

    def read(self, baseline: str, scope: Scope = "question") -> pa.Table:
        """A baseline's table over all questions in their order, or over all answers by block, range and question.

        Raises:
            InputError: The store lacks tables, or one is damaged or has other settings.
        """
        shards, missing = self._folder.shards(scope), self.missing(baseline, scope)
        if missing or not shards:
            path = self._folder.path
            raise InputError(
                f"Expected the store {str(path)!r} to hold what {baseline!r} asks of the {scope}s, but {len(missing)} "
                f"of {len(shards)} {'blocks' if scope == 'question' else 'sample ranges'} lack it (asked there: "
                f"{', '.join(self.names(scope)) or 'nothing'}). Run `python -m extract ask --store {path} "
                f"--baselines [{baseline}]`."
            )
        return pa.concat_tables([self.read_shard(baseline, shard) for shard in shards])

    def read_shard(self, baseline: str, shard: Shard) -> pa.Table:
        """A baseline's table of a shard.

        Raises:
            Damaged: The file is damaged, belongs to another shard, or has other settings than the first table read.
        """
        file, ids = self.file(baseline, shard), self._folder.questions.ids(shard)
        n_rows = self._folder.questions.n_rows(shard)
        table = read_table(file, self._folder.path, _SCHEMAS[shard.scope], n_rows, ("value", "mass"))
        settings, stated = (_stated(table, key) for key in (b"how", b"of"))
        expected = self._folder.provenance(shard, file, baseline=baseline)
        if stated != expected or not isinstance(settings, dict):
            raise Damaged(file, f"its metadata says {shown(stated)}, not {canonical_json(expected)}")
        if isinstance(shard, SampleRange):
            check_keys(table, shard, ids, file)
        elif table["question_id"].to_pylist() != ids:
            raise Damaged(file, f"its rows are not the questions of block {shard.block} in their order")
        first = self._settings.setdefault((baseline, shard.scope), settings)
        if settings != first:
            raise Damaged(
                file, f"its settings differ from another table's in {'; '.join(differences(settings, first))}"
            )
        return table.replace_schema_metadata(None)

    def _finished(self, baseline: str, scope: Scope) -> list[Shard]:
        return [shard for shard in self._folder.shards(scope) if is_finished(self.file(baseline, shard))]


def _stated(table: pa.Table, key: bytes) -> Any:
    """A JSON value of a table's metadata; None where there is none."""
    try:
        return json.loads((table.schema.metadata or {}).get(key, b"null"))
    except (ValueError, RecursionError):
        return None
