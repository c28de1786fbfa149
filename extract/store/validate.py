"""What the rows of a part have to be: one a question and sample, and figures that a model and a grader can give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from extract.store.files import Damaged, shown
from extract.store.shards import Part, Place

#: A log-probability may lie above 0 by what float32 loses of logits in the hundreds.
ROUNDING = 1e-3


def check_samples(table: pa.Table, part: Part, ids: Sequence[str], max_new_tokens: int, path: Path) -> None:
    """Refuse samples that no sampler gives.

    Args:
        table: Rows of the columns of `SAMPLES_SCHEMA`, without nulls.
        part: The part that they are of.
        ids: Question ids of its block.
        max_new_tokens: Most tokens of an answer.
        path: The file, for the message.

    Raises:
        Damaged: Naming the column, and the first row where it is wrong.
    """
    question = _check_keys(table, part, ids, path)
    n_tokens, n_logprobs = (_lengths(table[name]) for name in ("token_ids", "logprobs"))
    _refuse(n_tokens != n_logprobs, table, path, "has another number of `token_ids` than of `logprobs`")
    _refuse(
        (n_tokens < 1) | (n_tokens > max_new_tokens),
        table,
        path,
        f"has a number of `token_ids` that is not from 1 to {max_new_tokens}",
    )
    _check_tokens(table, path)
    _check_end(table, ("stop", "length"), path)
    prompt_tokens = _numpy(table["prompt_tokens"])
    _refuse(prompt_tokens < 1, table, path, "has `prompt_tokens` below 1")
    of_question = np.zeros(len(ids), dtype=prompt_tokens.dtype)
    of_question[question] = prompt_tokens
    _refuse(
        of_question[question] != prompt_tokens, table, path, "has other `prompt_tokens` than a sample of its question"
    )


def check_served_samples(table: pa.Table, part: Part, ids: Sequence[str], path: Path) -> None:
    """Refuse samples that no server gives, or that this project keeps of none.

    Args:
        table: Rows of the columns of `SERVED_SAMPLES_SCHEMA`, nulls in `SERVED_NULLABLE` only.
        part: The part that they are of.
        ids: Question ids of its block.
        path: The file, for the message.

    Raises:
        Damaged: Naming the column, and the first row where it is wrong.
    """
    _check_keys(table, part, ids, path)
    told = _numpy(pc.and_(pc.is_valid(table["token_ids"]), pc.is_valid(table["logprobs"])))
    differ = _lengths(table["token_ids"]) != _lengths(table["logprobs"])
    _refuse(told & differ, table, path, "has another number of `token_ids` than of `logprobs`")
    _check_tokens(table, path)
    _check_end(table, ("stop", "length", "content_filter"), path)
    for name, least in {"n_tokens": 0, "prompt_tokens": 1}.items():
        _refuse(_numpy(table[name].fill_null(least)) < least, table, path, f"has `{name}` below {least}")


def _lengths(lists: pa.ChunkedArray) -> NDArray[np.int64]:
    """[row] number of values in a list; 0 of null."""
    return _numpy(pc.list_value_length(lists).fill_null(0)).astype(np.int64)


def _check_tokens(table: pa.Table, path: Path) -> None:
    """Refuse token ids and log-probabilities that none has.

    Raises:
        Damaged: As `check_samples`.
    """
    tokens, logprobs = (_numpy(pc.list_flatten(table[name])) for name in ("token_ids", "logprobs"))
    wrong = {
        "has a negative number in `token_ids`": ("token_ids", tokens < 0),
        "has `logprobs` that are not finite": ("logprobs", ~np.isfinite(logprobs)),
        "has `logprobs` above 0": ("logprobs", logprobs > ROUNDING),
    }
    for problem, (name, values_wrong) in wrong.items():
        row = np.repeat(np.arange(table.num_rows), _lengths(table[name]))
        _refuse(np.bincount(row, values_wrong, table.num_rows) > 0, table, path, problem)


def _check_end(table: pa.Table, known: Sequence[str], path: Path) -> None:
    """Refuse answers that ended in no known way.

    Raises:
        Damaged: There is one.
    """
    finished = _numpy(pc.is_in(table["finish_reason"], pa.array(known)))
    named = f"neither {known[0]} nor {known[1]}" if len(known) == 2 else f"none of {', '.join(known)}"
    _refuse(~finished, table, path, f"has a `finish_reason` that is {named}")


def check_prompts(tables: dict[Path, pa.Table]) -> None:
    """Refuse parts of which one holds another prompt length of a question than an earlier one.

    Args:
        tables: Checked samples of every part by its file.

    Raises:
        Damaged: There is one.
    """
    seen: dict[str, tuple[int, str]] = {}
    for path, table in tables.items():
        for question, length in zip(table["question_id"].to_pylist(), table["prompt_tokens"].to_pylist(), strict=True):
            other, earlier = seen.setdefault(question, (length, path.name))
            if length != other:
                raise Damaged(
                    path, f"question {shown(question)} has {length} `prompt_tokens` there and {other} in {earlier}"
                )


def check_grades(table: pa.Table, part: Part, ids: Sequence[str], grader: str, samples: str | None, path: Path) -> None:
    """Refuse grades that are not a grader's for the samples of a part.

    Args:
        table: Rows of the columns of `GRADES_SCHEMA`, with the file's metadata.
        part: The part that they are of.
        ids: Question ids of its block.
        grader: Whose they are.
        samples: SHA-256 of the samples; None compares nothing. Grades of versions that did not keep it have none.
        path: The file, for the message.

    Raises:
        Damaged: The metadata names another grader or other samples, the rows are not those of the part, or an answer is right that was
            not found.
    """
    metadata = {key: value.decode(errors="replace") for key, value in (table.schema.metadata or {}).items()}
    stated, of = metadata.get(b"grader", "nobody"), metadata.get(b"samples")
    if stated != grader:
        raise Damaged(path, f"its metadata says that the grades are by {shown(stated)}, not by {grader!r}")
    if of is not None and samples is not None and of != samples:
        raise Damaged(path, "its grades are of other answers than those in the samples, which were made again")
    _check_keys(table, part, ids, path)
    right_without = pc.and_(table["right"].fill_null(False), pc.is_null(table["answer"]))
    _refuse(_numpy(right_without), table, path, "is right and has no `answer`")


def check_asked(table: pa.Table, place: Place, ids: Sequence[str], path: Path) -> None:
    """Refuse what no model was asked about the questions of a block, or the answers of a part.

    Args:
        table: Rows of the columns of `ASKED_QUESTIONS_SCHEMA` or `ASKED_SAMPLES_SCHEMA`, nulls in `value` and `mass` only.
        place: The block or part that they are of.
        ids: Question ids of the block.
        path: The file, for the message.

    Raises:
        Damaged: Naming the column, and the first row where it is wrong.
    """
    if isinstance(place, Part):
        _check_keys(table, place, ids, path)
    elif table["question_id"].to_pylist() != list(ids):
        raise Damaged(path, f"its rows are not the questions of block {place} in their order")
    for name in ("value", "mass"):
        if name in table.column_names:
            stated = _numpy(table[name].fill_null(0.0))
            _refuse(~np.isfinite(stated), table, path, f"has a `{name}` that is not finite")
    for name in ("prompt_tokens", "completion_tokens", "attempts"):
        if name in table.column_names:
            _refuse(_numpy(table[name]) < 0, table, path, f"has `{name}` below 0")


def _check_keys(table: pa.Table, part: Part, ids: Sequence[str], path: Path) -> NDArray[np.int64]:
    """Place in `ids` of each row's question, after a check that each question and sample of the part comes once."""
    place = pc.index_in(table["question_id"], pa.array(ids, pa.string()))
    _refuse(_numpy(pc.is_null(place)), table, path, f"is of a question that is not in block {part.block}")
    sample = _numpy(table["sample"]).astype(np.int64)
    _refuse(
        (sample < part.start) | (sample >= part.stop),
        table,
        path,
        f"is of a sample that is not from {part.start} to {part.stop - 1}",
    )
    question = _numpy(place).astype(np.int64)
    _, first = np.unique(question * (part.stop - part.start) + sample - part.start, return_index=True)
    repeated = np.ones(table.num_rows, dtype=bool)
    repeated[first] = False
    _refuse(repeated, table, path, "is of a question and sample that an earlier row has")
    return question


def _numpy(column: pa.ChunkedArray) -> NDArray[Any]:
    return column.to_numpy()


def _refuse(wrong: NDArray[np.bool_], table: pa.Table, path: Path, problem: str) -> None:
    """Name the first of the wrong [row] rows."""
    if wrong.any():
        row = int(wrong.argmax())
        name = f"question {shown(table['question_id'][row].as_py())}"
        if "sample" in table.column_names:
            name += f", sample {table['sample'][row].as_py()}"
        raise Damaged(path, f"row {row} ({name}) {problem}")
