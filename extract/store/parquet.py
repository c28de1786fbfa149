"""Parquet tables of a store."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from extract.errors import Damaged
from extract.store.files import check_file, write_file
from extract.store.shards import Scope
from extract.text import one_line


def _schema(columns: str) -> pa.Schema:
    """Build a schema from a string such as ``"sample:int32 token_ids:int32s"``. ``int32s`` is a list of int32."""
    pairs = (column.split(":") for column in columns.split())
    return pa.schema(
        [(name, pa.list_(pa.type_for_alias(kind[:-1])) if kind.endswith("s") else kind) for name, kind in pairs]
    )


#: Samples without nullable columns.
COMPACT_SAMPLES_SCHEMA = _schema(
    "question_id:string sample:int32 token_ids:int32s text:string logprobs:float32s finish_reason:string "
    "prompt_tokens:int32"
)
#: Samples with nullable columns. The `reasoning` column contains the text before the answer.
SAMPLES_SCHEMA = _schema(
    "question_id:string sample:int32 text:string reasoning:string token_ids:int32s logprobs:float32s n_tokens:int32 "
    "finish_reason:string prompt_tokens:int32"
)
#: `right` is null if the grader could not decide. `answer` is null if the grader found no answer.
GRADES_SCHEMA = _schema("question_id:string sample:int32 right:bool answer:string")
#: Results of model-based baselines, by scope. `value` is null if the reply `text` contains no value. For clustered
#: answers, `value` is the index of the cluster. `mass` is the total probability of Yes and No in `p_true`.
ASKED_SCHEMAS = {
    "question": _schema(
        "question_id:string value:float64 text:string mass:float64 prompt_tokens:int64 completion_tokens:int64 "
        "attempts:int32"
    ),
    "sample": _schema("question_id:string sample:int32 value:float64 prompt_tokens:int64 completion_tokens:int64"),
}
#: Additional columns of baselines. `likelihood` has the continuations of each question, their log-probabilities in nats
#: with and without the prompt, their lengths, and the index of the right continuation (null if unknown).
_ADDED_COLUMNS = {
    "likelihood": _schema(
        "continuations:strings logprobs:float64s unconditional:float64s n_tokens:int32s n_bytes:int32s target:int32"
    )
}


def asked_schema(baseline: str, scope: Scope) -> pa.Schema:
    """Return the schema of a baseline's tables."""
    return pa.schema([*ASKED_SCHEMAS[scope], *_ADDED_COLUMNS.get(baseline, ())])


def write_table(path: Path, table: pa.Table, row_group_size: int | None = None) -> None:
    """Write a Parquet file, and a sidecar file with its size and checksum."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=row_group_size)
    write_file(path, sink.getvalue().to_pybytes())


def read_table(path: Path, folder: Path, schema: pa.Schema, *earlier: pa.Schema) -> pa.Table:
    """Verify the checksum of a Parquet file and read it.

    Args:
        folder: Folder that must contain the file.
        schema: Schema that the file must have.
        *earlier: Schemas of earlier versions, which are also accepted.

    Raises:
        Damaged: If the file is damaged or has different columns.
    """
    check_file(path, folder)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(path, f"it can't be read as a table ({one_line(error)})") from None
    if not any(table.schema.equals(accepted) for accepted in (schema, *earlier)):
        names = ", ".join(table.column_names)
        raise Damaged(path, f"its columns ({names}) or their types differ from the schema ({', '.join(schema.names)})")
    return table
