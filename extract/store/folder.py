"""`StoreFolder`, the directory of a store, and `ShardFiles`, the base class for data stored in one file per shard."""

import json
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from extract.errors import Damaged, InputError
from extract.hashing import canonical_json, differences, sha256_json
from extract.questions.question import questions_hash
from extract.store.files import is_finished, read_sidecar
from extract.store.parquet import read_table
from extract.store.questions import EARLIER_QUESTIONS_SCHEMA, QUESTIONS_SCHEMA, Questions
from extract.store.shards import Block, SampleRange, Scope, Shard, check_name, overlap, range_of


class StoreFolder:
    """A store's directory, its identity (as plain JSON types), and the SHA-256 of that identity."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity, self.sha256 = path, identity, sha256_json(identity)

    @cached_property
    def questions(self) -> Questions:
        """Questions of the store, in order. Raises `Damaged` if the file is damaged or altered."""
        file = self.path / "questions.parquet"
        table = read_table(file, self.path, QUESTIONS_SCHEMA, EARLIER_QUESTIONS_SCHEMA)
        questions = Questions(table, self.identity["block_size"])
        if (found := questions_hash(questions)) != self.identity["questions"]:
            raise Damaged(file, f"the SHA-256 of its questions is {found} instead of {self.identity['questions']}")
        return questions

    def ranges(self, folder: Path | None = None) -> list[SampleRange]:
        """Return the finished sample ranges in `folder` (`samples` by default), sorted.

        Raises `Damaged` if they overlap.
        """
        n_blocks = self.questions.n_blocks
        files = {range_of(path, n_blocks): path for path in (folder or self.path / "samples").glob("*.parquet")}
        ranges = sorted(samples for samples, path in files.items() if is_finished(path))
        if clash := overlap(ranges):
            raise Damaged(files[clash[1]], f"it contains samples that are also in {files[clash[0]].name}")
        return ranges

    def shards(self, scope: Scope) -> list[Shard]:
        """Return all blocks (question scope) or all finished ranges of samples (sample scope), in row order."""
        return [*map(Block, range(self.questions.n_blocks))] if scope == "question" else [*self.ranges()]

    def samples_file(self, samples: SampleRange) -> Path:
        """Path of the file for a range of samples."""
        return self.path / "samples" / f"{samples.stem}.parquet"

    def samples_sha256(self, samples: SampleRange) -> str | None:
        """SHA-256 of the file for a range of samples, or None if the file is not finished."""
        file = self.samples_file(samples)
        return read_sidecar(file).sha256 if is_finished(file) else None

    def read_table(self, file: Path, shard: Shard, schema: pa.Schema) -> pa.Table:
        """Read the table of a shard.

        Raises:
            Damaged: If the file is damaged, or does not contain each row of the shard exactly once.
        """
        ids, table = self.questions.ids(shard), read_table(file, self.path, schema)
        found, is_sound = table["question_id"].to_pylist(), table.num_rows == self.questions.n_rows(shard)
        if isinstance(shard, Block):
            is_sound = found == ids
        elif is_sound:
            index, sample = pc.index_in(table["question_id"], pa.array(ids, pa.string())), table["sample"]
            is_sound = not index.null_count and not sample.null_count
            if is_sound:
                rows = index.to_numpy().astype(np.int64), sample.to_numpy() - shard.start
                is_sound = rows[1].min() >= 0 and rows[1].max() < shard.rows_per_question
                is_sound = is_sound and len(np.unique(rows[0] * shard.rows_per_question + rows[1])) == len(rows[0])
        if not is_sound:
            raise Damaged(file, f"it does not contain each row of {shard.stem} exactly once")
        return table


class ShardFiles:
    """Base class for the grades, signals or model-based baselines of a store.

    Each grader, signal or baseline has a name and one file per shard.

    Args:
        subfolder: Format string of the subfolder, for example ``"grades/{name}"``. It can also contain ``{scope}``.
        noun: ``"grader"``, ``"signal"`` or ``"baseline"``.
        suffix: File name suffix.
    """

    def __init__(self, folder: StoreFolder, subfolder: str, noun: str, suffix: str = ".parquet") -> None:
        self._folder, self._subfolder, self._noun, self._suffix = folder, subfolder, noun, suffix
        self._settings: dict[tuple[str, Scope], Any] = {}  # from the file that was read first

    def names(self) -> list[str]:
        """Return the sorted names of all graders, signals or baselines."""
        folders = (self._folder.path / self._subfolder.partition("/")[0]).glob("*")
        names = (folder.name for folder in folders if folder.is_dir() and not folder.name.startswith("."))
        return sorted(check_name(name, self._noun) for name in names)

    def file(self, name: str, shard: Shard) -> Path:
        """Path of the file for a name and shard."""
        return self._place(name, shard.scope) / f"{shard.stem}{self._suffix}"

    def finished(self, name: str, scope: Scope) -> list[Shard]:
        """Return the shards that have a finished file."""
        return [shard for shard in self._folder.shards(scope) if is_finished(self.file(name, shard))]

    def missing(self, name: str, scope: Scope = "question") -> list[Shard]:
        """Return the shards whose file is missing or unfinished."""
        return [shard for shard in self._folder.shards(scope) if not is_finished(self.file(name, shard))]

    def check_complete(self, name: str, scope: Scope, command: str) -> None:
        """Raise an InputError if a shard has no finished file. The message tells the user to run `command`."""
        shards, missing, path = self._folder.shards(scope), self.missing(name, scope), str(self._folder.path)
        if not shards:
            raise InputError(
                f"Expected the store {path!r} to contain answers, but it has none. Run `python -m extract sample`."
            )
        if missing:
            unit, rows = ("blocks", "questions") if scope == "question" else ("sample ranges", "answers")
            available = ", ".join(other for other in self.names() if self.finished(other, scope)) or "none"
            raise InputError(
                f"Expected the store {path!r} to contain the {name!r} {self._noun} for all {rows}, but {len(missing)} "
                f"of {len(shards)} {unit} lack it. Run `python -m extract {command}`. The store has these "
                f"{self._noun}s for some or all {rows}: {available}."
            )

    def settings(self, name: str, scope: Scope) -> dict[str, Any] | None:
        """Return the settings in the first intact file of a signal or baseline, or None if no file is intact."""
        if not self._place(name, scope).is_dir():
            self._settings.pop((name, scope), None)  # the user deleted the folder
        for shard in () if (name, scope) in self._settings else self.finished(name, scope):
            with suppress(Damaged):  # damaged files will be replaced
                self._settings[name, scope] = self._read_settings(name, shard)
                break
        return self._settings.get((name, scope))

    def check_settings(self, name: str, scope: Scope, settings: dict[str, Any]) -> None:
        """Raise an InputError if settings differ from those of the existing files."""
        found, expected = self.settings(name, scope), json.loads(canonical_json(settings))
        if found is not None and (different := "; ".join(differences(found, expected))):
            raise InputError(
                f"Expected this run to have the same settings as the files in {str(self._place(name, scope))!r}, but "
                f"it differs in {different}. Run with the files' settings, or delete that folder to start over."
            )

    def _place(self, name: str, scope: Scope) -> Path:
        return self._folder.path / self._subfolder.format(name=check_name(name, self._noun), scope=scope)

    def _read_settings(self, name: str, shard: Shard) -> dict[str, Any] | None:
        raise NotImplementedError

    def _provenance(self, name: str, shard: Shard) -> dict[str, Any]:
        """Return a dict that identifies the store, block and samples of a file."""
        record = {"identity": self._folder.sha256, self._noun: name, "block": shard.block}
        if isinstance(shard, Block):
            return record
        samples = self._folder.samples_sha256(shard)
        if samples is None:
            raise Damaged(self.file(name, shard), "the store contains no samples for this file")
        return {**record, "scope": "sample", "part": [shard.start, shard.stop], "samples": samples}
