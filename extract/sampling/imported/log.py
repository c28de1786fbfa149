"""Content of a log that another tool wrote, and helpers for reading such logs."""

import re
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from extract.errors import InputError
from extract.grading.base import Grade
from extract.policy import KnownDecoding
from extract.questions.numbers import gold_number
from extract.questions.question import Kind, Question
from extract.questions.source import check_questions, says_anything
from extract.text import one_line, valid_text

#: Name of a model or task that is missing from the log.
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Answer:
    """An answer in a log.

    Attributes:
        text: Text of the answer, without reasoning.
        finish_reason: ``stop``, ``length`` or ``content_filter``; None if unknown.
        grades: Dict from grader name to grade. If a grader is missing, its grade is unknown.
    """

    text: str
    reasoning: str | None = None
    finish_reason: str | None = None
    grades: dict[str, Grade] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    """Content of a log. Other fields of the log are dropped, because they can contain API keys and paths.

    Attributes:
        origin: Name and version of the tool, and name of the task; None if unknown.
        answers: Dict from (question id, sample index) to answer. Answers may be missing.
        k: Number of answers to each question, including missing answers.
        rules: Dict from grader name to a description of the grader.
    """

    origin: dict[str, str | None]
    model: str
    decoding: KnownDecoding
    questions: list[Question]
    answers: dict[tuple[str, int], Answer]
    k: int
    rules: dict[str, str]


def grade_of(score: object, answer: str | None) -> Grade:
    """Convert a score to a grade: 1 means right, 0 means wrong, and all other scores mean unknown.

    The score can also be a bool or a letter that Inspect uses: C (correct), I (incorrect), N (no answer), P (partial).

    >>> [grade_of(score, "4").right for score in (1.0, False, "C", 0.5, None)]
    [True, False, True, None, None]
    """
    if isinstance(score, str):
        right = {"C": True, "I": False, "N": False}.get(score)
    else:
        right = {0.0: False, 1.0: True}.get(score) if isinstance(score, bool | int | float) else None
    return Grade(right, None if answer is None or score == "N" else valid_text(answer))


def grader_name(*parts: str) -> str:
    """Join the parts of a grader name, and replace invalid characters.

    >>> grader_name("inspect", "my scorer/accuracy")
    'inspect_my-scorer-accuracy'
    """
    return re.sub(r"[^A-Za-z0-9_.-]", "-", "_".join(parts))[:100]


def add_grade(grades: dict[str, Grade], name: str, grade: Grade) -> None:
    """Add a named grade to an answer's grades. Raises an `InputError` if the name is already in use."""
    if name in grades:
        raise InputError(
            f"Expected scores to have different names, but two of them would be stored as {name!r}. Rename or "
            "remove one of them."
        )
    grades[name] = grade


def safe_name(name: object) -> str:
    r"""Return the name of a model or task without folders or options. Options can contain API keys.

    >>> safe_name("org/model"), safe_name("./models/tiny/"), safe_name(r".\models\tiny"), safe_name(None)
    ('org/model', 'tiny', 'tiny', 'unknown')
    >>> safe_name("pretrained=./models/tiny,api_key=secret")
    'tiny'
    """
    text = re.split(r"[,\r\n]", str(name or ""))[0].strip().rstrip("/\\")
    parts = re.split(r"[\\/]", text)
    is_path = text.startswith((".", "/", "~")) or len(parts) > 2 or "\\" in text
    return (parts[-1] if is_path else text) or UNKNOWN


def checked_questions(questions: Iterable[Question], kind: Kind | None, path: Path) -> list[Question]:
    """Check the questions of a log. Questions may lack references.

    If `kind` is passed, it replaces the kind of all questions except `choice` questions.
    """
    found = []
    for question in questions:
        if kind is not None and question.kind != "choice":
            question = replace(question, kind=kind)
        references = question.references
        if question.kind == "number":
            references = tuple(gold_number(text, f"question {question.id!r}") for text in references)
        found.append(
            replace(question, references=tuple(text for text in references if says_anything(question.kind, text)))
        )
    return check_questions(found, repr(path.name), need_references=False)


def check_same(earlier: Question | None, question: Question, where: str) -> Question:
    """Check that a question equals an earlier question with the same id, and return it."""
    if earlier is not None and earlier != question:
        names = ("text", "messages", "references", "kind", "choices", "group", "meta")
        different = ", ".join(name for name in names if getattr(earlier, name) != getattr(question, name))
        raise InputError(
            f"Expected all answers to question {question.id!r} to have the same prompt and references, but {where} "
            f"differs from an earlier answer in {different}. Agent logs and logs with varying prompts "
            "can't be imported."
        )
    return question


def check_new(key: tuple[str, object], earlier: Container[tuple[str, object]], where: str) -> None:
    """Raise an `InputError` if the key of an answer or score is in `earlier`."""
    if key in earlier:
        raise InputError(
            f"Expected the ids of the answers to a question to be unique, but {where} repeats the id {key[1]!r} for "
            f"question {key[0]!r}. Remove one of the two entries."
        )


@contextmanager
def readable(path: Path, form: str) -> Iterator[None]:
    """Context manager that raises an `InputError` if reading a file fails. `form` describes the expected file."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # zipfile, zlib, struct, pyarrow and look-ups in unknown records raise many exception types
        raise InputError(
            f"Expected {str(path)!r} to be {form}, but it can't be read "
            f"({type(error).__name__}: {one_line(error, 200)}). The file may be truncated, or its version may not be "
            "supported."
        ) from None
