"""The store's Parquet tables: their columns, questions as rows, and reading that trusts no header."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import pyarrow as pa
import pyarrow.parquet as pq

from extract.questions.question import Question, check_questions, questions_hash
from extract.store.files import Damaged, check_file, one_line, read_file, write_file

QUESTIONS_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("dataset", pa.string()),
        ("text", pa.string()),
        ("messages", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("references", pa.list_(pa.string())),
        ("kind", pa.string()),
        ("choices", pa.list_(pa.string())),
        ("group", pa.string()),
        ("meta", pa.string()),
    ]
)
SAMPLES_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sample", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("text", pa.string()),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
    ]
)
#: Answers of a served model; null is what its server did not tell. `reasoning` is what a thinking model wrote before the answer.
SERVED_SAMPLES_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sample", pa.int32()),
        ("text", pa.string()),
        ("reasoning", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("n_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int32()),
    ]
)
#: `right` is null where the grader could not decide; `answer` is what it took for the answer, null where it found none.
GRADES_SCHEMA = pa.schema(
    [("question_id", pa.string()), ("sample", pa.int32()), ("right", pa.bool_()), ("answer", pa.string())]
)
#: What a model was asked about each question. `value` is null where what it said has none; `text` is what it said; `mass`
#: is the probability of all the surface forms that were looked at, null where none were.
ASKED_QUESTIONS_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("value", pa.float64()),
        ("text", pa.string()),
        ("mass", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("attempts", pa.int32()),
    ]
)
#: What a model was asked about each answer: a probability, or the number of the answer's cluster.
ASKED_SAMPLES_SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("sample", pa.int32()),
        ("value", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
    ]
)
#: What a server may not tell of an answer.
SERVED_NULLABLE = ("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens")
#: The columns of the other tables that may hold nulls.
_NULLABLE = ("right", "answer", "value", "mass")
_LARGEST = 2**31  # bytes of a table, in the file and in memory
_BATCH = 1024  # questions that are made at a time


class Questions(Sequence[Question]):
    """The questions of a store, kept as a table, which is small; each is made when it is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @classmethod
    def of(cls, questions: Iterable[Question]) -> Questions:
        """Keep questions as a table."""
        rows = (
            {**one.record(), "question_id": one.id, "meta": json.dumps(one.meta, sort_keys=True)} for one in questions
        )
        batches = iter(lambda: list(islice(rows, _BATCH)), [])
        return cls(
            pa.Table.from_batches(
                [pa.RecordBatch.from_pylist(batch, QUESTIONS_SCHEMA) for batch in batches], QUESTIONS_SCHEMA
            )
        )

    def ids(self, start: int, stop: int) -> list[str]:
        """Ids of the questions from a first to a last one, without making the questions."""
        ids: list[str] = self._table["question_id"].slice(start, max(0, stop - start)).to_pylist()
        return ids

    def write(self, path: Path) -> None:
        """Write the table with its voucher."""
        write_arrow(path, self._table, row_group_size=_BATCH)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @overload
    def __getitem__(self, index: int) -> Question: ...
    @overload
    def __getitem__(self, index: slice) -> list[Question]: ...
    def __getitem__(self, index: int | slice) -> Question | list[Question]:
        """One question, or the questions from a first to a last one."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return [_question_of(row) for row in self._table.slice(start, stop - start).to_pylist()]
        return self[index : index + 1][0]

    def __iter__(self) -> Iterator[Question]:
        for start in range(0, len(self), _BATCH):
            yield from self[start : start + _BATCH]


def read_questions(path: Path, folder: Path, sha256: str) -> Questions:
    """Read the questions of a store whose identity holds the hash `sha256` of them.

    Raises:
        Damaged: They are others, or break a rule of `check_questions`.
    """
    questions = Questions(read_table(path, folder, QUESTIONS_SCHEMA))
    try:
        found = questions_hash(check_questions(questions, "the store"))
    except (ValueError, RecursionError) as error:
        raise Damaged(path, f"a question is not as it has to be ({one_line(error)})") from None
    if found != sha256:
        raise Damaged(path, f"its questions have the SHA-256 {found} where the identity has {sha256}")
    return questions


def _question_of(row: dict[str, Any]) -> Question:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Question(id=fields.pop("question_id"), meta=json.loads(fields.pop("meta")), **fields)


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Write rows as a Parquet file with its voucher."""
    write_arrow(path, pa.Table.from_pylist(rows, schema=schema))


def write_arrow(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a table as a Parquet file with its voucher."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
    write_file(path, sink.getvalue().to_pybytes())


def read_table(
    path: Path, folder: Path, schema: pa.Schema, n_rows: int | None = None, nullable: Collection[str] = _NULLABLE
) -> pa.Table:
    """Read a Parquet file that may hold anything.

    Args:
        path: The file.
        folder: The store, which it has to lie in.
        schema: Exactly its columns.
        n_rows: Exactly how many rows it has; None takes any number.
        nullable: Columns whose rows may be null; what a list holds never is.

    Returns:
        A table of `schema` with the file's metadata, and without nulls but in the `nullable` columns.

    Raises:
        Damaged: The file is no such table.
    """
    content = read_file(path, folder, _LARGEST)
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if problem := _header_problem(file, schema, n_rows):
            raise Damaged(path, problem)
        table = pa.Table.from_batches(_batches(path, file), schema=file.schema_arrow)
        table.validate(full=True)  # lengths, offsets and UTF-8
    except Damaged:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, f"it is no table that can be read ({one_line(error)})") from None
    if n_rows is not None and table.num_rows != n_rows:
        raise Damaged(path, f"it has {table.num_rows} rows where {n_rows} belong")
    for column in table.column_names:
        arrays = list(_nested(table[column].combine_chunks()))
        if any(array.null_count for array in arrays[column in nullable :]):
            raise Damaged(path, f"`{column}` holds nulls")
    return table


def check_n_rows(path: Path, folder: Path, n_rows: int) -> None:
    """Refuse a Parquet file whose bytes are not those that were written, or of another number of rows; reads no column.

    Args:
        path: The file.
        folder: The store, which it has to lie in.
        n_rows: Exactly how many rows it has.

    Raises:
        Damaged: As `check_file`, or it has more or fewer rows.
    """
    check_file(path, folder)
    try:
        found = pq.read_metadata(path).num_rows
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        raise Damaged(path, f"it is no table that can be read ({one_line(error)})") from None
    if found != n_rows:
        raise Damaged(path, f"it has {found} rows where {n_rows} belong")


def _header_problem(file: pq.ParquetFile, schema: pa.Schema, n_rows: int | None) -> str | None:
    """What is wrong with what a file says of itself, in a few words."""
    found = file.schema_arrow
    for name in schema.names:
        if name not in found.names:
            return f"the column `{name}` is missing"
    for field in found:
        if field.name not in schema.names:
            return f"it has a column {field.name!r} that does not belong there"
    for field in schema:
        one = found.field(field.name) if found.names.count(field.name) == 1 else None
        if one is None or one.type != field.type or one.metadata:
            return f"the column `{field.name}` is not a plain one of {field.type}"
    if n_rows is not None and file.metadata.num_rows != n_rows:
        return f"it has {file.metadata.num_rows} rows where {n_rows} belong"
    return None


def _batches(path: Path, file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """The rows, few enough at a time that a text which the file holds once and repeats in every row can't fill the memory.

    What the file says of its sizes is not believed, and of a column's own metadata nothing is asked: where they are
    damaged, pyarrow ends the whole process.
    """
    n_bytes = 0
    for batch in file.iter_batches(batch_size=256):
        n_bytes += batch.nbytes
        if n_bytes > _LARGEST:
            raise Damaged(path, f"its columns take more than the {_LARGEST} bytes that are read")
        yield batch


def _nested(array: pa.Array) -> Iterator[pa.Array]:
    """An array and what its lists and structs hold."""
    yield array
    if pa.types.is_list(array.type):
        yield from _nested(array.flatten())
    elif pa.types.is_struct(array.type):
        for field in array.flatten():
            yield from _nested(field)
