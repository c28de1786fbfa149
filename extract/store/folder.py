"""Common base of the samples, grades, signals and asked tables of a store: its folder, and one file per shard."""

import json
from contextlib import suppress
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import Damaged, InputError
from extract.hashing import canonical_json, differences, sha256_json
from extract.questions.question import questions_hash
from extract.store.files import is_finished, read_sidecar
from extract.store.parquet import read_table
from extract.store.questions import QUESTIONS_SCHEMA, Questions
from extract.store.shards import Block, SampleRange, Scope, Shard, check_name, overlap, range_of


class StoreFolder:
    """The directory of a store.

    Attributes:
        path: The directory.
        identity: Content of the identity, plain JSON types.
        sha256: SHA-256 of the identity.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity, self.sha256 = path, identity, sha256_json(identity)

    @cached_property
    def questions(self) -> Questions:
        """The questions in their order, read once.

        Raises:
            Damaged: If their hash differs from the identity.
        """
        file = self.path / "questions.parquet"
        questions = Questions(read_table(file, self.path, QUESTIONS_SCHEMA), self.identity["block_size"])
        if (found := questions_hash(questions)) != self.identity["questions"]:
            raise Damaged(file, f"its SHA-256 is {found}, but the identity has {self.identity['questions']}")
        return questions

    def ranges(self, folder: Path | None = None) -> list[SampleRange]:
        """Ranges with a finished Parquet file in a folder of the store, `samples` if none is given, sorted.

        Raises:
            Damaged: If a Parquet file is not named after a range, or two files contain the same samples.
        """
        n_blocks = self.questions.n_blocks
        files = {range_of(path, n_blocks): path for path in (folder or self.path / "samples").glob("*.parquet")}
        ranges = sorted(samples for samples, path in files.items() if is_finished(path))
        if clash := overlap(ranges):
            raise Damaged(files[clash[1]], f"it contains samples that are also in {files[clash[0]].name}")
        return ranges

    def shards(self, scope: Scope) -> list[Shard]:
        """All blocks, or all finished ranges of samples, in the order of the rows."""
        return [*map(Block, range(self.questions.n_blocks))] if scope == "question" else [*self.ranges()]

    def samples_file(self, samples: SampleRange) -> Path:
        """Path of a range of samples, finished or not."""
        return self.path / "samples" / f"{samples.stem}.parquet"

    def samples_sha256(self, samples: SampleRange) -> str | None:
        """SHA-256 of the file of a range of samples; None if it is not finished."""
        file = self.samples_file(samples)
        return read_sidecar(file).sha256 if is_finished(file) else None

    def read_table(self, file: Path, shard: Shard, schema: pa.Schema) -> pa.Table:
        """Read the table of a shard, with the file's metadata.

        Raises:
            Damaged: If the file is damaged, or does not have each row of the shard exactly once.
        """
        ids, table = self.questions.ids(shard), read_table(file, self.path, schema)
        found, is_sound = table["question_id"].to_pylist(), table.num_rows == self.questions.n_rows(shard)
        if isinstance(shard, Block):
            is_sound = found == ids
        elif is_sound:
            keys = zip(found, table["sample"].to_pylist(), strict=True)
            is_sound = set(keys) == set(product(ids, range(shard.start, shard.stop)))
        if not is_sound:
            raise Damaged(file, f"it does not have each row of {shard.stem} exactly once")
        return table


class ShardFiles:
    """Files of a store, one per name (of a grader, signal or baseline) and shard.

    Args:
        folder: The store.
        subfolder: Format of the subfolder, with fields for name and optionally scope: ``"grades/{name}"``.
        noun: Kind of the names, for messages and provenance records.
        suffix: Suffix of the files.
    """

    def __init__(self, folder: StoreFolder, subfolder: str, noun: str, suffix: str = ".parquet") -> None:
        self._folder, self._subfolder, self._noun, self._suffix = folder, subfolder, noun, suffix
        self._settings: dict[tuple[str, Scope], Any] = {}  # of the file that was read first

    def names(self) -> list[str]:
        """Sorted names that have a folder.

        Raises:
            InputError: As for `check_name`.
        """
        folders = (self._folder.path / self._subfolder.partition("/")[0]).glob("*")
        names = (folder.name for folder in folders if folder.is_dir() and not folder.name.startswith("."))
        return sorted(check_name(name, self._noun) for name in names)

    def file(self, name: str, shard: Shard) -> Path:
        """Path of the file of a name and shard, finished or not."""
        return self._place(name, shard.scope) / f"{shard.stem}{self._suffix}"

    def finished(self, name: str, scope: Scope) -> list[Shard]:
        """Shards with a finished file."""
        return [shard for shard in self._folder.shards(scope) if is_finished(self.file(name, shard))]

    def missing(self, name: str, scope: Scope = "question") -> list[Shard]:
        """Shards without a finished file."""
        return [shard for shard in self._folder.shards(scope) if not is_finished(self.file(name, shard))]

    def check_complete(self, name: str, scope: Scope, command: str) -> None:
        """Check that all shards have a finished file. The message tells the user to run `command`.

        Raises:
            InputError: If a shard has no file, or there are no answers.
        """
        shards, missing, path = self._folder.shards(scope), self.missing(name, scope), str(self._folder.path)
        if not shards:
            raise InputError(
                f"Expected the store {path!r} to hold answers, but it has none. Run `python -m extract sample`."
            )
        if missing:
            unit, rows = ("blocks", "questions") if scope == "question" else ("sample ranges", "answers")
            raise InputError(
                f"Expected the store {path!r} to hold the {self._noun} {name!r} of the {rows}, but {len(missing)} of "
                f"{len(shards)} {unit} lack it ({self._noun}s there: {', '.join(self.names()) or 'none'}). Run "
                f"`python -m extract {command}`."
            )

    def settings(self, name: str, scope: Scope) -> dict[str, Any] | None:
        """Settings (model, prompts, options) of a signal's or baseline's files, from the first intact one, or None."""
        if not self._place(name, scope).is_dir():
            self._settings.pop((name, scope), None)  # the user deleted the folder to start over
        for shard in () if (name, scope) in self._settings else self.finished(name, scope):
            with suppress(Damaged):  # damaged files are made again
                self._settings[name, scope] = self._read_settings(name, shard)
                break
        return self._settings.get((name, scope))

    def check_settings(self, name: str, scope: Scope, settings: dict[str, Any]) -> None:
        """Check settings against those of the existing files.

        Raises:
            InputError: If the settings differ.
        """
        found, expected = self.settings(name, scope), json.loads(canonical_json(settings))
        if found is not None and (different := "; ".join(differences(found, expected))):
            raise InputError(
                f"Expected this run to have the settings of the files in {str(self._place(name, scope))!r}, but it "
                f"differs in {different}. Use the same settings, or delete that folder to start over."
            )

    def _place(self, name: str, scope: Scope) -> Path:
        return self._folder.path / self._subfolder.format(name=check_name(name, self._noun), scope=scope)

    def _read_settings(self, name: str, shard: Shard) -> dict[str, Any] | None:
        raise NotImplementedError

    def _provenance(self, name: str, shard: Shard) -> dict[str, Any]:
        """Provenance record that ties a file to its store, block and samples, which can differ if drawn again."""
        record = {"identity": self._folder.sha256, self._noun: name, "block": shard.block}
        if isinstance(shard, Block):
            return record
        samples = self._folder.samples_sha256(shard)
        if samples is None:
            raise Damaged(self.file(name, shard), "the store has no such samples")
        return {**record, "scope": "sample", "part": [shard.start, shard.stop], "samples": samples}
