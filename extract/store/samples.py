"""Samples of a store: one Parquet file for each range of samples of a block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.samplers import SAMPLERS, sampler_name
from extract.store.files import Damaged, is_finished, read_sidecar
from extract.store.folder import StoreFolder
from extract.store.parquet import COMPACT_SAMPLES_SCHEMA, SAMPLES_SCHEMA, read_table, write_table
from extract.store.shards import SampleRange, missing_ranges

#: `finish_reason` of an answer that a server refused to give. It has no text, and is unknown to every grader.
REJECTED = "rejected"


class Samples:
    """Samples on disk.

    Args:
        folder: The store.

    Attributes:
        provides: What the sampler declares about them.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self.provides = SAMPLERS[sampler_name(folder.identity["sampler"])]

    def ranges(self) -> list[SampleRange]:
        """Finished ranges of samples, by block and sample.

        Raises:
            Damaged: A Parquet file that is not named after a range, or ranges that overlap.
        """
        return self._folder.ranges()

    def missing(self, k: int) -> list[SampleRange]:
        """Ranges that are missing for k samples of every question."""
        return missing_ranges(self.ranges(), self._folder.questions.n_blocks, k)

    def file(self, samples: SampleRange) -> Path:
        """Where a range of samples is, or will be."""
        return self._folder.samples_file(samples)

    def log_file(self, samples: SampleRange) -> Path:
        """Where answers that arrive one at a time wait until their range is complete."""
        return self.file(samples).with_suffix(".jsonl")

    def sha256(self, samples: SampleRange) -> str | None:
        """SHA-256 of the file of a range; None where there is none."""
        return read_sidecar(self.file(samples)).sha256 if is_finished(self.file(samples)) else None

    def write(self, samples: SampleRange, rows: list[dict[str, Any]], max_rows: int | None = None) -> None:
        """Write a range of samples.

        Args:
            samples: The range.
            rows: One row for each sample.
            max_rows: Answers that were drawn at a time, on which their last bits depend.
        """
        metadata = None if max_rows is None else {"max_rows": str(max_rows)}
        write_table(self.file(samples), rows, self._schema.with_metadata(metadata))

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Samples of a range, or all of them, by block, range and question.

        Columns: `question_id`, `sample`, `text`, `token_ids`, `logprobs` (nats), `n_tokens`, `finish_reason` and
        `prompt_tokens`; `reasoning` where the sampler declares nullable columns, which are null where it does not know.

        Raises:
            Damaged: A file is damaged.
        """
        tables = [self._read(part) for part in (self.ranges() if samples is None else [samples])]
        table = pa.concat_tables([self._schema.empty_table(), *tables])
        if self.provides.nullable:
            return table
        n_tokens = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SAMPLES_SCHEMA.field("n_tokens"), n_tokens)

    @property
    def _schema(self) -> pa.Schema:
        return SAMPLES_SCHEMA if self.provides.nullable else COMPACT_SAMPLES_SCHEMA

    def _read(self, samples: SampleRange) -> pa.Table:
        file, n_rows = self.file(samples), self._folder.questions.n_rows(samples)
        table = read_table(file, self._folder.path, self._schema, n_rows, self.provides.nullable)
        check_keys(table, samples, self._folder.questions.ids(samples), file)
        return table


def check_keys(table: pa.Table, samples: SampleRange, ids: Sequence[str], file: Path) -> None:
    """Refuse a table whose rows are not the questions and samples of a range, each once.

    Raises:
        Damaged: They are not.
    """
    keys = set(zip(table["question_id"].to_pylist(), table["sample"].to_pylist(), strict=True))
    if keys != {(id_, sample) for id_ in ids for sample in range(samples.start, samples.stop)}:
        raise Damaged(file, f"its rows are not the samples {samples.stem}, each once")
