"""The store's Parquet tables: schemas, writing, and reading within bounds."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from extract.errors import Damaged
from extract.store.files import check_file, read_file, write_file
from extract.text import one_line

_LARGEST = 2**31  # bytes of a table, in the file and in memory
_UNREADABLE = (OSError, ValueError, MemoryError, pa.ArrowException)


def _schema(columns: str) -> pa.Schema:
    """Schema of columns ``NAME:TYPE``; a type in the plural is a list."""
    pairs = (column.split(":") for column in columns.split())
    return pa.schema(
        [(name, pa.list_(pa.type_for_alias(kind[:-1])) if kind.endswith("s") else kind) for name, kind in pairs]
    )


#: Samples of which nothing is unknown; the number of tokens is that of `token_ids`.
COMPACT_SAMPLES_SCHEMA = _schema(
    "question_id:string sample:int32 token_ids:int32s text:string logprobs:float32s finish_reason:string "
    "prompt_tokens:int32"
)
#: Samples of which the sampler may not know everything. `reasoning` is what a thinking model wrote before the answer.
SAMPLES_SCHEMA = _schema(
    "question_id:string sample:int32 text:string reasoning:string token_ids:int32s logprobs:float32s n_tokens:int32 "
    "finish_reason:string prompt_tokens:int32"
)
#: `right` is null where the grader could not decide; `answer` is what it took for the answer, null where it found none.
GRADES_SCHEMA = _schema("question_id:string sample:int32 right:bool answer:string")
#: What a model replied about each question. `value` is null where its reply `text` has none; `mass` is the probability
#: of all surface forms that were scored, null where none were.
ASKED_QUESTIONS_SCHEMA = _schema(
    "question_id:string value:float64 text:string mass:float64 prompt_tokens:int64 completion_tokens:int64 "
    "attempts:int32"
)
#: What a model was asked about each answer: a probability, or the number of the answer's cluster.
ASKED_SAMPLES_SCHEMA = _schema(
    "question_id:string sample:int32 value:float64 prompt_tokens:int64 completion_tokens:int64"
)


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Write rows as a Parquet file with its sidecar."""
    write_arrow(path, pa.Table.from_pylist(rows, schema=schema))


def write_arrow(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a table as a Parquet file with its sidecar."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
    write_file(path, sink.getvalue().to_pybytes())


def read_table(
    path: Path, folder: Path, schema: pa.Schema, n_rows: int | None = None, nullable: Collection[str] = ()
) -> pa.Table:
    """Read a Parquet file after comparing it with its checksum.

    Args:
        path: The file.
        folder: The store, in which it has to lie.
        schema: Exactly its columns. The table that is returned also has the file's metadata.
        n_rows: Exactly how many rows it has; None takes any number.
        nullable: Columns that may hold nulls.

    Raises:
        Damaged: The file is damaged, or has other columns or rows.
    """
    content, batches, n_bytes = read_file(path, folder, _LARGEST), [], 0
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        if not file.schema_arrow.equals(schema):
            names = ", ".join(file.schema_arrow.names)
            raise Damaged(path, f"its columns ({names}) are not {', '.join(schema.names)} with their types")
        for batch in file.iter_batches(batch_size=256):  # a file can repeat one text in every row
            n_bytes += batch.nbytes
            if n_bytes > _LARGEST:
                raise Damaged(path, f"its columns take more than {_LARGEST} bytes")
            batches.append(batch)
        table = pa.Table.from_batches(batches, schema=file.schema_arrow)
        table.validate(full=True)
    except Damaged:
        raise
    except _UNREADABLE as error:
        raise Damaged(path, f"it can't be read as a table ({one_line(error)})") from None
    if n_rows is not None and table.num_rows != n_rows:
        raise Damaged(path, f"it has {table.num_rows} rows, not {n_rows}")
    if nulls := [name for name in table.column_names if name not in nullable and table[name].null_count]:
        raise Damaged(path, f"`{nulls[0]}` holds nulls")
    return table


def check_n_rows(path: Path, folder: Path, n_rows: int) -> None:
    """Compare a Parquet file with its checksum and its number of rows; reads no column.

    Raises:
        Damaged: As `check_file`, or the file has another number of rows.
    """
    check_file(path, folder)
    try:
        found = pq.read_metadata(path).num_rows
    except _UNREADABLE as error:
        raise Damaged(path, f"it can't be read as a table ({one_line(error)})") from None
    if found != n_rows:
        raise Damaged(path, f"it has {found} rows, not {n_rows}")
