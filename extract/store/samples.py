"""Samples of a store, in one Parquet file per range of samples."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.errors import Damaged
from extract.samplers import SAMPLERS, sampler_name
from extract.store.folder import StoreFolder
from extract.store.parquet import COMPACT_SAMPLES_SCHEMA, SAMPLES_SCHEMA, write_table
from extract.store.shards import SampleRange, missing_ranges

#: `finish_reason` of a sample whose request the server rejected. The text is empty, and the grade is always unknown.
REJECTED = "rejected"


class Samples:
    """Samples on disk.

    Args:
        folder: Directory of the store.

    Attributes:
        provides: Declared properties of the sampler that drew the samples.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self.provides = SAMPLERS[sampler_name(folder.identity["sampler"])]
        self._schema = SAMPLES_SCHEMA if self.provides.nullable else COMPACT_SAMPLES_SCHEMA

    def ranges(self) -> list[SampleRange]:
        """Return the finished ranges of samples, sorted by block and sample index.

        Raises:
            Damaged: If the name of a Parquet file is not a valid range, or ranges overlap.
        """
        return self._folder.ranges()

    def missing(self, k: int) -> list[SampleRange]:
        """Return the ranges that must still be sampled so that every question has k samples."""
        return missing_ranges(self.ranges(), self._folder.questions.n_blocks, k)

    def file(self, samples: SampleRange) -> Path:
        """Path of the file for a range of samples, whether or not it exists."""
        return self._folder.samples_file(samples)

    def log_file(self, samples: SampleRange) -> Path:
        """Path of the answer log of an unfinished range."""
        return self.file(samples).with_suffix(".jsonl")

    def write(self, samples: SampleRange, rows: list[dict[str, Any]], max_rows: int | None = None) -> None:
        """Write a range of samples.

        Args:
            samples: The range of samples.
            rows: One row per sample.
            max_rows: Maximum number of answers per batch, which affects the last bits of the log-probabilities.
        """
        metadata = None if max_rows is None else {"max_rows": str(max_rows)}
        write_table(self.file(samples), pa.Table.from_pylist(rows, self._schema.with_metadata(metadata)))

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Read the samples of one range, or of all ranges by default, sorted by block, range and question.

        The columns are `question_id`, `sample`, `text`, `token_ids`, `logprobs` (nats), `n_tokens`, `finish_reason` and
        `prompt_tokens`. If the sampler has nullable columns, `reasoning` is added, and unknown values are null.

        Raises:
            Damaged: If a file is damaged.
        """
        tables = [self._schema.empty_table()]
        for part in self.ranges() if samples is None else [samples]:
            tables.append(self._folder.read_table(self.file(part), part, self._schema))
            if tables[-1]["text"].null_count:
                raise Damaged(self.file(part), "it contains an answer without text")
        table = pa.concat_tables(tables)
        if self.provides.nullable:
            return table
        n_tokens = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SAMPLES_SCHEMA.field("n_tokens"), n_tokens)
