"""Samples of a store: one Parquet file for each range of samples of a block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.store.files import Damaged, is_finished, read_sidecar
from extract.store.folder import StoreFolder
from extract.store.parquet import SAMPLES_SCHEMA, SERVED_NULLABLE, SERVED_SAMPLES_SCHEMA, read_table, write_table
from extract.store.shards import SampleRange, missing_ranges


class Samples:
    """Samples on disk.

    Args:
        folder: The store.
    """

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self._served = str(folder.identity["sampler"]).startswith("server")

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
        """Where the answers of a served model wait until their range is complete."""
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
        schema = SERVED_SAMPLES_SCHEMA if self._served else SAMPLES_SCHEMA.with_metadata({"max_rows": str(max_rows)})
        write_table(self.file(samples), rows, schema)

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Samples of a range, or all of them, by block, range and question.

        Columns: `question_id`, `sample`, `text`, `token_ids`, `logprobs` (nats), `n_tokens`, `finish_reason` and
        `prompt_tokens`; of a served model also `reasoning`, and null where its server did not tell.

        Raises:
            Damaged: A file is damaged.
        """
        tables = [self._read(part) for part in (self.ranges() if samples is None else [samples])]
        if self._served:
            return pa.concat_tables([SERVED_SAMPLES_SCHEMA.empty_table(), *tables])
        table = pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tables])
        n_tokens = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SERVED_SAMPLES_SCHEMA.field("n_tokens"), n_tokens)

    def _read(self, samples: SampleRange) -> pa.Table:
        schema, nullable = (SERVED_SAMPLES_SCHEMA, SERVED_NULLABLE) if self._served else (SAMPLES_SCHEMA, ())
        file = self.file(samples)
        table = read_table(file, self._folder.path, schema, self._folder.questions.n_rows(samples), nullable)
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
