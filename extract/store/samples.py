"""Samples of a store: one Parquet file for each range of samples of a block."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.errors import Damaged
from extract.samplers import SAMPLERS, sampler_name
from extract.store.folder import StoreFolder
from extract.store.parquet import COMPACT_SAMPLES_SCHEMA, SAMPLES_SCHEMA, write_table
from extract.store.shards import SampleRange, missing_ranges

#: `finish_reason` of an answer that a server rejected. It has no text, and every grader grades it as unknown.
REJECTED = "rejected"


class Samples:
    """Samples on disk.

    Args:
        folder: The store.

    Attributes:
        provides: Declaration of the sampler.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self.provides = SAMPLERS[sampler_name(folder.identity["sampler"])]
        self._schema = SAMPLES_SCHEMA if self.provides.nullable else COMPACT_SAMPLES_SCHEMA

    def ranges(self) -> list[SampleRange]:
        """Finished ranges of samples, by block and sample.

        Raises:
            Damaged: If a Parquet file is not named after a range, or ranges overlap.
        """
        return self._folder.ranges()

    def missing(self, k: int) -> list[SampleRange]:
        """Ranges to sample so that every question has k samples."""
        return missing_ranges(self.ranges(), self._folder.questions.n_blocks, k)

    def file(self, samples: SampleRange) -> Path:
        """Path of a range of samples, finished or not."""
        return self._folder.samples_file(samples)

    def log_file(self, samples: SampleRange) -> Path:
        """Path of the answer log of an unfinished range."""
        return self.file(samples).with_suffix(".jsonl")

    def write(self, samples: SampleRange, rows: list[dict[str, Any]], max_rows: int | None = None) -> None:
        """Write a range of samples.

        Args:
            samples: The range.
            rows: One row for each sample.
            max_rows: Number of answers drawn together, which affects the last bits of the log-probabilities.
        """
        metadata = None if max_rows is None else {"max_rows": str(max_rows)}
        write_table(self.file(samples), pa.Table.from_pylist(rows, self._schema.with_metadata(metadata)))

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Read the samples of a range, or all samples, by block, range and question.

        Columns: `question_id`, `sample`, `text`, `token_ids`, `logprobs` (nats), `n_tokens`, `finish_reason` and
        `prompt_tokens`. Samplers with nullable columns also have `reasoning`; unknown values are null.

        Raises:
            Damaged: If a file is damaged.
        """
        tables = [self._schema.empty_table()]
        for part in self.ranges() if samples is None else [samples]:
            tables.append(self._folder.read_table(self.file(part), part, self._schema))
            if tables[-1]["text"].null_count:
                raise Damaged(self.file(part), "it has an answer without text")
        table = pa.concat_tables(tables)
        if self.provides.nullable:
            return table
        n_tokens = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SAMPLES_SCHEMA.field("n_tokens"), n_tokens)
