"""Grades of a store: one Parquet file per grader and range of samples."""

from typing import Any

import pyarrow as pa

from extract.errors import Damaged, InputError, nearest
from extract.store.folder import ShardFiles, StoreFolder
from extract.store.parquet import GRADES_SCHEMA, write_table
from extract.store.shards import SampleRange, Scope, Shard


class Grades(ShardFiles):
    """Grades on disk.

    Args:
        folder: The store.
    """

    def __init__(self, folder: StoreFolder) -> None:
        super().__init__(folder, "grades/{name}", "grader")

    def names(self) -> list[str]:
        """Names of the graders with grades in the store."""
        return [name for name in super().names() if self.ranges(name)]

    def choose(self, grader: str | None) -> str:
        """The named grader, or the only one.

        Raises:
            InputError: If there are no grades, none by the named grader, or several graders and `grader` is None.
        """
        names, path = self.names(), self._folder.path
        if not names:
            raise InputError(
                f"Expected the store {str(path)!r} to hold grades, but it has none. "
                f"Run `python -m extract grade --store {path}`."
            )
        if grader not in names and (grader is not None or len(names) > 1):
            raise InputError(
                f"Expected `grader` to be one of {', '.join(names)}, which have grades in {str(path)!r}, "
                f"but got {grader!r}.{nearest(grader or '', names)} Name one, or run `python -m extract grade`."
            )
        return grader or names[0]

    def ranges(self, grader: str) -> list[SampleRange]:
        """Ranges that a grader has graded.

        Raises:
            InputError: As for `Samples.ranges`, or if `grader` is not a valid name.
        """
        return self._folder.ranges(self._place(grader, "sample"))

    def missing(self, grader: str, scope: Scope = "sample") -> list[Shard]:
        """Ranges of samples that a grader has not graded."""
        return super().missing(grader, scope)

    def write(self, grader: str, samples: SampleRange, rows: list[dict[str, Any]], rule: str) -> None:
        """Write a grader's grades of a range, one row per sample, with a description of the grading rule."""
        metadata = {"grader": grader, "rule": rule, "samples": self._folder.samples_sha256(samples)}
        write_table(self.file(grader, samples), pa.Table.from_pylist(rows, GRADES_SCHEMA.with_metadata(metadata)))

    def read(self, grader: str, samples: SampleRange | None = None) -> pa.Table:
        """Read a grader's grades of a range, or all: `question_id`, `sample`, `right` (null if unknown), `answer`.

        Raises:
            InputError: If a file is damaged, its samples were replaced, or `grader` is not a valid name.
        """
        ranges = self.ranges(grader) if samples is None else [samples]
        return pa.concat_tables([GRADES_SCHEMA.empty_table(), *(self._read(grader, part)[0] for part in ranges)])

    def rule(self, grader: str, samples: SampleRange) -> str:
        """Description of the rule by which a range was graded.

        Raises:
            InputError: As for `read`.
        """
        return self._read(grader, samples)[1].get("rule", "")

    def _read(self, grader: str, samples: SampleRange) -> tuple[pa.Table, dict[str, str]]:
        """Grades of a range, and the file's metadata."""
        file = self.file(grader, samples)
        table = self._folder.read_table(file, samples, GRADES_SCHEMA)
        pairs = (table.schema.metadata or {}).items()
        metadata = {str(key, "utf-8", "replace"): str(value, "utf-8", "replace") for key, value in pairs}
        if metadata.get("grader") != grader:
            raise Damaged(file, f"it holds grades of {metadata.get('grader')!r}, not of {grader!r}")
        # stores of early versions do not record which samples were graded
        graded, there = metadata.get("samples"), self._folder.samples_sha256(samples)
        if None not in (graded, there) and graded != there:
            raise Damaged(file, "it holds grades of samples that were replaced since")
        return table.replace_schema_metadata(None), metadata
