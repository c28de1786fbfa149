"""Grades of a store: one Parquet file for each grader and range of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.store.files import Damaged
from extract.store.folder import StoreFolder
from extract.store.parquet import GRADES_SCHEMA, read_table, write_table
from extract.store.samples import Samples, check_keys
from extract.store.shards import SampleRange, check_name, finished_ranges, folder_names


class Grades:
    """Grades on disk.

    Args:
        folder: The store.
        samples: Its samples.
    """

    def __init__(self, folder: StoreFolder, samples: Samples) -> None:
        self._folder, self._samples = folder, samples

    def names(self) -> list[str]:
        """Names of the graders whose grades the store holds."""
        return [name for name in folder_names(self._folder.path / "grades", "grader") if self.ranges(name)]

    def choose(self, grader: str | None) -> str:
        """The named grader, or the only one.

        Raises:
            InputError: There are no grades, none by the named grader, or several graders and none is named.
        """
        names, path = self.names(), self._folder.path
        if not names:
            raise InputError(
                f"Expected the store {str(path)!r} to hold grades, but it has none. "
                f"Run `python -m extract grade --store {path}`."
            )
        if grader not in names and (grader is not None or len(names) > 1):
            raise InputError(
                f"Expected `grader` to be one of {', '.join(names)}, whose grades {str(path)!r} holds, "
                f"but got {grader!r}. Name one of them, or run `python -m extract grade`."
            )
        return grader or names[0]

    def ranges(self, grader: str) -> list[SampleRange]:
        """Ranges that a grader has graded.

        Raises:
            InputError: As `Samples.ranges`, or `grader` is not a plain name.
        """
        return finished_ranges(self._grader_folder(grader), self._folder.questions.n_blocks)

    def missing(self, grader: str) -> list[SampleRange]:
        """Ranges of samples that a grader has not graded."""
        graded = set(self.ranges(grader))
        return [samples for samples in self._samples.ranges() if samples not in graded]

    def file(self, grader: str, samples: SampleRange) -> Path:
        """Where a grader's grades of a range are, or will be."""
        return self._grader_folder(grader) / f"{samples.stem}.parquet"

    def write(self, grader: str, samples: SampleRange, rows: list[dict[str, Any]], rule: str) -> None:
        """Write a grader's grades of a range, one row for each sample, with the grader's rule in words."""
        metadata = {"grader": grader, "rule": rule}
        if (sha256 := self._samples.sha256(samples)) is not None:
            metadata["samples"] = sha256
        write_table(self.file(grader, samples), rows, GRADES_SCHEMA.with_metadata(metadata))

    def read(self, grader: str, samples: SampleRange | None = None) -> pa.Table:
        """A grader's grades of a range, or all of them: `question_id`, `sample`, `right` (null: unknown), `answer`.

        Raises:
            InputError: A file is damaged, grades of samples that were replaced, or `grader` is not a plain name.
        """
        ranges = self.ranges(grader) if samples is None else [samples]
        tables = [self._read(grader, part).replace_schema_metadata(None) for part in ranges]
        return pa.concat_tables([GRADES_SCHEMA.empty_table(), *tables])

    def rule(self, grader: str, samples: SampleRange) -> str:
        """The rule in words by which a range was graded.

        Raises:
            InputError: As `read`.
        """
        return self._metadata(self._read(grader, samples)).get("rule", "")

    def _read(self, grader: str, samples: SampleRange) -> pa.Table:
        file, questions = self.file(grader, samples), self._folder.questions
        table = read_table(file, self._folder.path, GRADES_SCHEMA, questions.n_rows(samples), ("right", "answer"))
        metadata = self._metadata(table)
        if metadata.get("grader") != grader:
            raise Damaged(file, f"it holds grades of {metadata.get('grader')!r}, not of {grader!r}")
        # stores of early versions do not record which samples were graded
        graded, there = metadata.get("samples"), self._samples.sha256(samples)
        if None not in (graded, there) and graded != there:
            raise Damaged(file, "it holds grades of samples that were replaced since")
        check_keys(table, samples, questions.ids(samples), file)
        return table

    def _grader_folder(self, grader: str) -> Path:
        return self._folder.path / "grades" / check_name(grader, "grader")

    @staticmethod
    def _metadata(table: pa.Table) -> dict[str, str]:
        pairs = (table.schema.metadata or {}).items()
        return {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}
