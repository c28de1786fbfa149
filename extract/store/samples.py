"""Samples of a store, in one Parquet file per range of samples."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from extract.errors import Damaged
from extract.hashing import canonical_json
from extract.samplers import SAMPLERS, sampler_name
from extract.store.files import parse_metadata
from extract.store.folder import StoreFolder
from extract.store.parquet import COMPACT_SAMPLES_SCHEMA, SAMPLES_SCHEMA, write_table
from extract.store.shards import SampleRange, missing_ranges

#: `finish_reason` of samples without an answer: the server rejected the request, sampling stopped early, or an imported
#: log does not contain the sample. Their text is empty, and their grade is unknown.
REJECTED = "rejected"
SKIPPED = "skipped"
MISSING = "missing"
WITHOUT_ANSWER = (REJECTED, SKIPPED, MISSING)
_STOPPING = "stopping"


class Samples:
    """Samples on disk, and the declared properties (`provides`) of their sampler."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder
        self.provides = SAMPLERS[sampler_name(folder.identity["sampler"])]
        self._schema = SAMPLES_SCHEMA if self.provides.nullable else COMPACT_SAMPLES_SCHEMA

    def ranges(self) -> list[SampleRange]:
        """Return the finished ranges of samples, sorted by block and sample index. Raises `Damaged` if they overlap."""
        return self._folder.ranges()

    def missing(self, k: int) -> list[SampleRange]:
        """Return the ranges to sample so that every question has k samples."""
        return missing_ranges(self.ranges(), self._folder.questions.n_blocks, k)

    def file(self, samples: SampleRange) -> Path:
        """Path of the file for a range of samples."""
        return self._folder.samples_file(samples)

    def log_file(self, samples: SampleRange) -> Path:
        """Path of the answer log of an unfinished range."""
        return self.file(samples).with_suffix(".jsonl")

    def write(
        self,
        samples: SampleRange,
        rows: list[dict[str, Any]],
        max_rows: int | None = None,
        stopping: dict[str, Any] | None = None,
    ) -> None:
        """Write a range of samples.

        Args:
            rows: One row per sample.
            max_rows: Maximum number of answers per batch. It is recorded because it affects the last bits of the
                log-probabilities.
            stopping: Early-stopping record (see the `stopping` method).
        """
        metadata = {} if max_rows is None else {"max_rows": str(max_rows)}
        if stopping is not None:
            metadata[_STOPPING] = canonical_json(stopping)
        write_table(self.file(samples), pa.Table.from_pylist(rows, self._schema.with_metadata(metadata or None)))

    def absent(self, question_id: str, sample: int, reason: str) -> dict[str, Any]:
        """Return the row of a sample without an answer. `reason` is one of `WITHOUT_ANSWER`."""
        tokens: dict[str, Any] = {"token_ids": [], "logprobs": []}
        if self.provides.nullable:
            tokens = dict.fromkeys(("token_ids", "logprobs", "reasoning", "n_tokens"))
        row = {"question_id": question_id, "sample": sample, "text": "", "finish_reason": reason}
        return {**row, **tokens, "prompt_tokens": None}

    def stopping(self, samples: SampleRange) -> dict[str, Any] | None:
        """Return a range's early-stopping record, or None if a fixed number of samples was drawn.

        The record contains the rule, its threshold, the temperatures and these entries:

        - ``budget``: maximum number of samples per question and temperature.
        - ``grader``: grader that parsed the answers.
        - ``priors``: SHA-256 of the questions' priors (see `extract.sampling.prior`), or null.
        - ``skipped``: number of skipped samples in the range.
        - ``questions``: dict from question id to a dict with these keys:

          - ``reason``: why sampling ended: ``rule``, ``budget`` (all answers were drawn) or ``rejected`` (by a server).
          - ``n_answers``: number of answers on which the decision is based.
          - ``evidence``: number that the rule compared with the threshold; null if it is not finite.
          - ``answer``: most frequent answer; null if the grader could not parse it.

        Raises:
            Damaged: If the metadata of the file is invalid.
        """
        file = self.file(samples)
        try:
            text = (pq.read_schema(file).metadata or {}).get(_STOPPING.encode())
        except (OSError, pa.ArrowException):  # the damage is reported when the samples are read
            return None
        return None if text is None else parse_metadata(file, text)

    def stopped(self) -> list[SampleRange]:
        """Return the finished ranges that contain skipped samples."""
        return [part for part in self.ranges() if (self.stopping(part) or {}).get("skipped")]

    def read(self, samples: SampleRange | None = None) -> pa.Table:
        """Read the samples of one range, or of all ranges by default.

        Rows are sorted by block, range and question. The columns are `question_id`, `sample`, `text`, `token_ids`,
        `logprobs` (nats), `n_tokens`, `finish_reason` and `prompt_tokens`. Columns that the sampler declares nullable
        contain null for unknown values. If any column is nullable, the table also has a `reasoning` column.

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
