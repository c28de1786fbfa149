"""The store: a directory with one policy's samples, grades, signals and asked tables, only ever added to.

Every data file is written beside its final name, renamed, and then vouched for by a small JSON file of its size and
SHA-256; a file without it is unfinished and is written again. Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.policy import Identity, differences
from extract.questions.question import Question
from extract.store.asked import AskedFiles
from extract.store.files import is_finished, is_whole, read_voucher
from extract.store.identity import check_place, read_identity, write_identity
from extract.store.parquet import GRADES_SCHEMA, Questions, read_table, write_table
from extract.store.shards import Part, check_name, finished_parts, folder_names
from extract.store.signals import SignalFiles
from extract.store.validate import check_grades
from extract.store.verify import find_problems, write_manifest


class Store(SignalFiles, AskedFiles):
    """A store on disk: samples and signals and asked tables by its bases, grades here. Use `Store.create` or `Store.open`."""

    @classmethod
    def create(cls, path: str | Path, identity: Identity, questions: Iterable[Question]) -> Store:
        """Make a store, or open the one at `path` if it has the same identity.

        Raises:
            InputError: There is a store of another identity, or a folder that is no store and not empty.
        """
        path = Path(path)
        check_place(path)
        if (path / "identity.json").is_file():
            store = cls.open(path)
            store.check_identity(identity.as_dict())
        else:
            path.mkdir(parents=True, exist_ok=True)
            store = cls(path, identity.as_dict())
            write_identity(path, store.identity)
        if not is_whole(
            path / "questions.parquet", path
        ):  # an earlier run may have stopped between the identity and them
            store._questions = questions if isinstance(questions, Questions) else Questions.of(questions)
            store._questions.write(path / "questions.parquet")
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a store.

        Raises:
            InputError: No store at `path`, or one that this version can't read.
        """
        return cls(Path(path), read_identity(Path(path)))

    def check_identity(self, wanted: dict[str, Any]) -> None:
        """Refuse another identity, saying both values of whatever differs.

        Raises:
            InputError: The identities differ.
        """
        found = list(differences(self.identity, wanted))
        if found:
            raise InputError(
                f"Expected the store {str(self.path)!r} to have the identity of this run, but they differ in {'; '.join(found)}. Give another --store, or the settings of that store."
            )

    # Grades

    def graders(self) -> list[str]:
        """Names of the graders whose grades the store holds."""
        return [name for name in folder_names(self.path / "grades", "grader") if self.graded_parts(name)]

    def ungraded_parts(self, grader: str) -> list[Part]:
        """Parts with samples and without this grader's grades."""
        graded = set(self.graded_parts(grader))
        return [part for part in self.parts() if part not in graded]

    def graded_parts(self, grader: str) -> list[Part]:
        """Parts with this grader's grades.

        Raises:
            InputError: As `parts`, or the grader's name is none.
        """
        return finished_parts(self._grades_folder(grader), self.n_blocks)

    def write_grades(self, grader: str, part: Part, rows: list[dict[str, Any]], rule: str) -> None:
        """Keep a grader's grades of a part, one row a sample; the table's metadata holds its rule in words and of which answers they are."""
        metadata = {"grader": grader, "rule": rule}
        if (samples := self._samples_sha256(part)) is not None:
            metadata["samples"] = samples
        write_table(self.grades_file(grader, part), rows, GRADES_SCHEMA.with_metadata(metadata))

    def grades(self, grader: str, part: Part | None = None) -> pa.Table:
        """A grader's grades of a part, or all of them.

        Raises:
            InputError: As `samples`, or the grader's name is none.
        """
        tables = []
        for one in self.graded_parts(grader) if part is None else [part]:
            path = self.grades_file(grader, one)
            tables.append(read_table(path, self.path, GRADES_SCHEMA, self.n_rows(one)))
            check_grades(tables[-1], one, self.ids(one), grader, self._samples_sha256(one), path)
        return pa.concat_tables([GRADES_SCHEMA.empty_table(), *tables])

    def _samples_sha256(self, part: Part) -> str | None:
        """SHA-256 of the samples of a part; None where there are none."""
        samples = self.samples_file(part)
        return read_voucher(samples).sha256 if is_finished(samples) else None

    def rule(self, grader: str, part: Part) -> str:
        """The rule in words by which a grader's grades of a part were given.

        Raises:
            InputError: As `grades`.
        """
        table = read_table(self.grades_file(grader, part), self.path, GRADES_SCHEMA)
        return (table.schema.metadata or {}).get(b"rule", b"").decode(errors="replace")

    def grades_file(self, grader: str, part: Part) -> Path:
        """Where a grader's grades of a part are, or will be."""
        return self._grades_folder(grader) / f"{part.stem}.parquet"

    def _grades_folder(self, grader: str) -> Path:
        return self.path / "grades" / check_name(grader, "grader")

    # Files

    def problems(self) -> Iterator[str]:
        """What is wrong with the store's files, one line each; nothing when it is whole."""
        return find_problems(self)

    def write_manifest(self) -> dict[str, Any]:
        """Write manifest.json, the index derived from the files, and return it."""
        return write_manifest(self)
