"""The store's Parquet tables: schemas, writing and reading."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from extract.errors import Damaged
from extract.store.files import check_file, write_file
from extract.text import one_line


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
#: By scope: what a model replied about each question, or was asked about each answer. `value` is null where a reply
#: `text` has none, and the number of a cluster where answers are clustered; `mass` is the probability of all surface
#: forms that were scored, null where none were.
ASKED_SCHEMAS = {
    "question": _schema(
        "question_id:string value:float64 text:string mass:float64 prompt_tokens:int64 completion_tokens:int64 "
        "attempts:int32"
    ),
    "sample": _schema("question_id:string sample:int32 value:float64 prompt_tokens:int64 completion_tokens:int64"),
}


def write_table(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a table as a Parquet file with its sidecar."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
    write_file(path, sink.getvalue().to_pybytes())


def read_table(path: Path, folder: Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file after comparing it with its checksum.

    Args:
        path: The file.
        folder: The store, in which it has to lie.
        schema: Exactly its columns. The table that is returned also has the file's metadata.

    Raises:
        Damaged: The file is damaged, or has other columns.
    """
    check_file(path, folder)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(path, f"it can't be read as a table ({one_line(error)})") from None
    if not table.schema.equals(schema):
        names = ", ".join(table.column_names)
        raise Damaged(path, f"its columns ({names}) are not {', '.join(schema.names)} with their types")
    return table
