"""Reader of JSON Lines files with one answer per line."""

from collections import Counter
from pathlib import Path
from typing import Any

from extract.errors import InputError, nearest
from extract.hashing import sha256_json
from extract.policy import KnownDecoding
from extract.questions.fields import FIELDS, Row, own_form
from extract.questions.loaders import Record, numbered_lines
from extract.questions.question import Kind, Question
from extract.sampling.imported.log import Answer, Log, check_new, check_same, checked_questions, grade_of, safe_name
from extract.schemas import KNOWN_DECODING, TEXT, TEXT_OR_NULL, number, or_null, whole
from extract.text import shown

GRADER = "score"
_RULE = "column `score` of a JSON Lines file (1: right, 0: wrong, others: unknown)"
#: Default of the `dataset` column. It is the same for all files, so that the stores of different files can be compared.
DATASET = "imported"
#: Columns of the policy, which must have the same values in all lines.
_POLICY = {"model": TEXT_OR_NULL, **KNOWN_DECODING}
#: All columns except the fields of a question.
COLUMNS = {
    "answer": TEXT,
    "dataset": TEXT_OR_NULL,
    "sample": or_null(whole(0, 999_999)),
    "score": or_null(number("a number from 0 to 1", lambda score: 0 <= score <= 1)),
    **_POLICY,
}


def read_json_lines(path: Path, kind: Kind | None) -> Log:
    """Read a JSON Lines file. Each line contains a question, an answer and possibly a score.

    Raises:
        InputError: If a line is invalid. The message contains the line number.
    """
    questions: dict[str, Question] = {}
    answers: dict[tuple[str, int], Answer] = {}
    n_answers: Counter[str] = Counter()
    first: dict[str, Any] = {}
    for where, record in numbered_lines(path):
        values = _values(record, where)
        first = first or values
        _check_alike(first, values, where)
        question = _question(record, values["dataset"] or DATASET, where)
        questions[question.id] = check_same(questions.get(question.id), question, where)
        key = (question.id, n_answers[question.id] if values["sample"] is None else values["sample"])
        check_new(key, answers, where)
        n_answers[question.id] += 1
        score = values["score"]
        answers[key] = Answer(
            values["answer"], grades={} if score is None else {GRADER: grade_of(score, values["answer"])}
        )
    checked = checked_questions(questions.values(), kind, path)
    return Log(
        {"tool": "jsonl", "version": None, "task": None},
        safe_name(first["model"]),
        KnownDecoding.of(first, chat=all(question.messages for question in checked)),
        checked,
        answers,
        1 + max(sample for _, sample in answers),
        {name: _RULE for answer in answers.values() for name in answer.grades},
    )


def _values(record: Record, where: str) -> dict[str, Any]:
    """Return the values of all `COLUMNS`, with None for missing columns."""
    for name, field in COLUMNS.items():
        if not field.holds(record.get(name)):
            raise InputError(
                f"Expected `{name}` in {where} to be {field.expected}, but got {shown(record.get(name))}. "
                "Fix the value and try again."
            )
    return {name: record.get(name) for name in COLUMNS}


def _check_alike(first: dict[str, Any], values: dict[str, Any], where: str) -> None:
    """Check that a line has the same policy as the first line, and that both or neither contain `sample`."""
    for name in _POLICY:
        if values[name] != first[name]:
            raise InputError(
                f"Expected `{name}` to be the same in all lines, but it is {shown(first[name])} in the first line and "
                f"{shown(values[name])} in {where}. Import answers from different policies into different stores."
            )
    if (values["sample"] is None) != (first["sample"] is None):
        raise InputError(
            f"Expected `sample` to be in all lines or in none, but {where} and the first line differ. Add it to all "
            "lines, or remove it from all lines."
        )


def _question(record: Record, dataset: str, where: str) -> Question:
    """Return the question in a log line. The default id of a question is a hash of its prompt."""
    if unknown := [name for name in record if name not in (*FIELDS, *COLUMNS)]:
        raise InputError(
            f"Expected the fields of {where} to be among {', '.join((*FIELDS, *COLUMNS))}, but got {unknown[0]!r}."
            f"{nearest(unknown[0], (*FIELDS, *COLUMNS))} Rename or remove it."
        )
    draft = own_form(Row({name: value for name, value in record.items() if name not in COLUMNS}, where))
    try:
        id_ = draft["id"] or sha256_json([draft.get("text"), draft.get("messages"), draft["choices"]])[:16]
    except ValueError as error:
        raise InputError(
            f"Expected {where} to contain valid text, but it does not: {error}. Fix the text and try again."
        ) from None
    return Question(**{**draft, "id": id_, "dataset": dataset})
