"""The store's Parquet tables: their columns, and questions as rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from extract.errors import InputError
from extract.files import write_file
from extract.questions.question import Question

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
#: `right` is null where the grader could not decide; `answer` is what it took for the answer.
GRADES_SCHEMA = pa.schema(
    [("question_id", pa.string()), ("sample", pa.int32()), ("right", pa.bool_()), ("answer", pa.string())]
)


def question_row(question: Question) -> dict[str, Any]:
    """A question as a row of the questions table."""
    return {**question.record(), "question_id": question.id, "meta": json.dumps(question.meta, sort_keys=True)}


def question_of(row: dict[str, Any]) -> Question:
    """The question of a row."""
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Question(id=fields.pop("question_id"), meta=json.loads(fields.pop("meta")), **fields)


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    """Write rows as a Parquet file with its voucher."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    write_file(path, sink.getvalue().to_pybytes())


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file with the columns of `schema`.

    Raises:
        InputError: The file is no such table.
    """
    try:
        return pq.read_table(path, schema=schema)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"Expected {str(path)!r} to be a table of the store, but it can't be read: {reason} If it is missing, run `python -m extract sample` with the settings of the store again; if it is damaged, delete it first."
        ) from error
