"""Samples of a store: one Parquet file for each range of samples of a block."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.samplers import SAMPLERS, sampler_name
from extract.store.folder import StoreFolder
from extract.store.parquet import COMPACT_SAMPLES_SCHEMA, SAMPLES_SCHEMA, write_table
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
        self._schema = SAMPLES_SCHEMA if self.provides.nullable else COMPACT_SAMPLES_SCHEMA

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

    def write(self, samples: SampleRange, rows: list[dict[str, Any]], max_rows: int | None = None) -> None:
        """Write a range of samples.

        Args:
            samples: The range.
            rows: One row for each sample.
            max_rows: Answers that were drawn at a time, on which their last bits depend.
        """
        metadata = None if max_rows is None else {"max_rows": str(max_rows)}
        write_table(self.file(samples), pa.Table.from_pylist(rows, self._schema.with_metadata(metadata)))

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Samples of a range, or all of them, by block, range and question.

        Columns: `question_id`, `sample`, `text`, `token_ids`, `logprobs` (nats), `n_tokens`, `finish_reason` and
        `prompt_tokens`; `reasoning` where the sampler declares nullable columns, which are null where it does not know.

        Raises:
            Damaged: A file is damaged.
        """
        tables = [
            self._folder.read_table(self.file(part), part, self._schema)
            for part in (self.ranges() if samples is None else [samples])
        ]
        table = pa.concat_tables([self._schema.empty_table(), *tables])
        if self.provides.nullable:
            return table
        n_tokens = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SAMPLES_SCHEMA.field("n_tokens"), n_tokens)
