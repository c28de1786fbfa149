"""Grades of a store: one Parquet file per grader and range of samples."""

from typing import Any

import pyarrow as pa

from extract.errors import Damaged, InputError, nearest
from extract.store.folder import ShardFiles, StoreFolder
from extract.store.parquet import GRADES_SCHEMA, write_table
from extract.store.shards import SampleRange, Scope, Shard


class Grades(ShardFiles):
    """Grades on disk."""

    def __init__(self, folder: StoreFolder) -> None:
        super().__init__(folder, "grades/{name}", "grader")

    def names(self) -> list[str]:
        """Return the names of all graders with grades."""
        return [name for name in super().names() if self.ranges(name)]

    def choose(self, grader: str | None) -> str:
        """Return `grader`, or the name of the store's only grader if `grader` is None.

        Raises:
            InputError: If `grader` has no grades, or if it is None and the store does not have exactly one grader.
        """
        names, path = self.names(), self._folder.path
        if not names:
            raise InputError(
                f"Expected the store {str(path)!r} to contain grades, but it has none. "
                f"Run `python -m extract grade --store {path}`."
            )
        if grader not in names and (grader is not None or len(names) > 1):
            raise InputError(
                f"Expected `grader` to be one of {', '.join(names)} (the graders with grades in {str(path)!r}), "
                f"but got {grader!r}.{nearest(grader or '', names)} Use one of them, or run `python -m extract grade`."
            )
        return grader or names[0]

    def ranges(self, grader: str) -> list[SampleRange]:
        """Return the ranges of samples that a grader has graded.

        Raises:
            InputError: If `grader` or a file name is invalid, or two files contain the same samples.
        """
        return self._folder.ranges(self._place(grader, "sample"))

    def missing(self, grader: str, scope: Scope = "sample") -> list[Shard]:
        """Return the ranges of samples that a grader has not graded."""
        return super().missing(grader, scope)

    def write(self, grader: str, samples: SampleRange, rows: list[dict[str, Any]], rule: str) -> None:
        """Write a grader's grades for a range of samples, and the grading rule. `rows` has one row per sample."""
        metadata = {"grader": grader, "rule": rule, "samples": self._folder.samples_sha256(samples)}
        write_table(self.file(grader, samples), pa.Table.from_pylist(rows, GRADES_SCHEMA.with_metadata(metadata)))

    def read(self, grader: str, samples: SampleRange | None = None) -> pa.Table:
        """Read a grader's grades for one range of samples, or for all ranges by default.

        The columns are `question_id`, `sample`, `right` (null if unknown) and `answer`.

        Raises:
            InputError: If `grader` is invalid, its grades are damaged, or graded samples were replaced.
        """
        ranges = self.ranges(grader) if samples is None else [samples]
        return pa.concat_tables([GRADES_SCHEMA.empty_table(), *(self._read(grader, part)[0] for part in ranges)])

    def rule(self, grader: str, samples: SampleRange) -> str:
        """Return the rule by which a range of samples was graded.

        Raises:
            InputError: If `grader` is invalid, its grades are damaged, or the samples were replaced after grading.
        """
        return self._read(grader, samples)[1].get("rule", "")

    def _read(self, grader: str, samples: SampleRange) -> tuple[pa.Table, dict[str, str]]:
        file = self.file(grader, samples)
        table = self._folder.read_table(file, samples, GRADES_SCHEMA)
        pairs = (table.schema.metadata or {}).items()
        metadata = {str(key, "utf-8", "replace"): str(value, "utf-8", "replace") for key, value in pairs}
        if metadata.get("grader") != grader:
            raise Damaged(file, f"it contains grades by {metadata.get('grader')!r}, not by {grader!r}")
        # early versions did not record the checksum of the samples
        graded, there = metadata.get("samples"), self._folder.samples_sha256(samples)
        if None not in (graded, there) and graded != there:
            raise Damaged(file, "its samples have been replaced since they were graded")
        return table.replace_schema_metadata(None), metadata
