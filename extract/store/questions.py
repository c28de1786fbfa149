"""Questions of a store, in a table."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Self, overload

import pyarrow as pa

from extract.errors import InputError
from extract.questions.question import Question
from extract.store.shards import Shard
from extract.text import one_line

_STRING, _STRINGS = pa.string(), pa.list_(pa.string())
#: Columns in earlier versions, which did not record a question's position in its source.
EARLIER_QUESTIONS_SCHEMA = pa.schema(
    [
        *((name, _STRING) for name in ("question_id", "dataset", "text")),
        ("messages", pa.list_(pa.struct([("role", _STRING), ("content", _STRING)]))),
        *(("references", _STRINGS), ("kind", _STRING), ("choices", _STRINGS), ("group", _STRING), ("meta", _STRING)),
    ]
)
QUESTIONS_SCHEMA = EARLIER_QUESTIONS_SCHEMA.append(pa.field("row", pa.int32()))
#: Number of questions to convert at once, and number of rows per Parquet row group.
BATCH = 1024


class Questions(Sequence[Question]):
    """Questions of a store, divided into blocks of `block_size`. `table` has one of this module's schemas."""

    def __init__(self, table: pa.Table, block_size: int) -> None:
        self.table, self.block_size = table, block_size

    @classmethod
    def of(cls, questions: Iterable[Question], block_size: int) -> Self:
        """Create an instance from `Question` objects."""
        rows = (
            {**q.record(), "row": q.row, "question_id": q.id, "meta": json.dumps(q.meta, sort_keys=True)}
            for q in questions
        )
        batches = iter(lambda: list(islice(rows, BATCH)), [])
        record_batches = [pa.RecordBatch.from_pylist(batch, QUESTIONS_SCHEMA) for batch in batches]
        return cls(pa.Table.from_batches(record_batches, QUESTIONS_SCHEMA), block_size)

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-len(self) // self.block_size)

    def block(self, shard: Shard) -> list[Question]:
        """Return the questions in a shard's block."""
        return self[shard.block * self.block_size : (shard.block + 1) * self.block_size]

    def ids(self, shard: Shard) -> list[str]:
        """Return the ids of the questions in a shard's block."""
        ids: list[str] = self.table["question_id"].slice(shard.block * self.block_size, self.block_size).to_pylist()
        return ids

    def n_rows(self, shard: Shard) -> int:
        """Return the number of questions in a block, or of answers in a range of samples."""
        return min(self.block_size, len(self) - shard.block * self.block_size) * shard.rows_per_question

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> list[Question]: ...
    def __getitem__(self, index: int | slice) -> Question | list[Question]:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return [_question(row) for row in self.table.slice(start, stop - start).to_pylist()]
        return self[index : index + 1][0]

    def __iter__(self) -> Iterator[Question]:
        for start in range(0, len(self), BATCH):
            yield from self[start : start + BATCH]


def _question(row: dict[str, Any]) -> Question:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    try:
        return Question(id=fields.pop("question_id"), meta=json.loads(fields.pop("meta")), **fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"Expected `meta` of every question to contain JSON, but reading a question failed: {one_line(error)}. "
            "Restore the store's questions.parquet, or make a new store."
        ) from None
