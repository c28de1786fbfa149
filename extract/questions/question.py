"""`Question`: what is asked, and what counts as right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from extract.errors import InputError
from extract.hashing import canonical_json, sha256_json_list
from extract.text import normalize

Kind = Literal["short", "number", "math", "choice", "cloze"]


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answers.

    Attributes:
        id: Unique within its set.
        dataset: Name of the set it comes from.
        text: The question, rendered by the policy's prompt. Exactly one of `text` and `messages` is given.
        messages: A chat of ``{"role", "content"}`` used as it is instead of a rendered text.
        references: Every form of the answer that counts as right; at least one.
        kind: What sort of answer is expected; graders and parsers look at it.
        choices: Options of a `choice` question, in the order shown.
        group: Stratum for splits and for the base-rate baseline ("capital", "sum", …).
        meta: Anything else. For the `short` grader: ``case_sensitive`` (bool), and ``rivals`` (texts), other
            answers that make the answer wrong when they are said before a reference.
    """

    id: str
    dataset: str
    text: str = ""
    messages: tuple[dict[str, str], ...] = ()
    references: tuple[str, ...] = ()
    kind: Kind = "short"
    choices: tuple[str, ...] = ()
    group: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The question as plain JSON types, the form that is hashed."""
        return {
            **asdict(self),
            "messages": list(self.messages),
            "references": list(self.references),
            "choices": list(self.choices),
        }


def check_questions(questions: Iterable[Question], source: str) -> Iterator[Question]:
    """Pass the questions on one by one, or say what is wrong with them.

    Raises:
        InputError: No question, a repeated or empty id, a question without references, without text and messages,
            or of an unknown kind. The message names `source` and the question's id.
    """
    seen: set[str] = set()
    for number, question in enumerate(questions, 1):
        where = f"question {question.id!r} (number {number} of {source})"
        if not question.id:
            raise InputError(
                f"Expected every question to have an `id`, but number {number} of {source} has none. Add one that is unique in the set."
            )
        if question.id in seen:
            raise InputError(
                f"Expected question ids to be unique, but {where} repeats an earlier one. Rename or remove one of the two."
            )
        if not question.references:
            raise InputError(
                f"Expected `references` of {where} to hold at least one gold answer, but it has none. Add one or remove the question."
            )
        empty = [reference for reference in question.references if not normalize(reference)]
        if empty:
            raise InputError(
                f"Expected `references` of {where} to hold words or numbers, but got {empty[0]!r}. Correct the reference."
            )
        if bool(question.text.strip()) == bool(question.messages):
            raise InputError(f"Expected {where} to have exactly one of `text` and `messages`. Give one of them.")
        for message in question.messages:
            if (
                not isinstance(message, dict)
                or message.keys() != {"role", "content"}
                or not all(isinstance(x, str) for x in message.values())
            ):
                raise InputError(
                    f"Expected `messages` of {where} to hold objects of a `role` and a `content`, both texts, but got {message!r}. Correct the field."
                )
        try:
            canonical_json(question.record()).encode()
        except ValueError as error:
            raise InputError(
                f"Expected {where} to hold text and finite numbers only, but it does not: {error}. Correct the question."
            ) from None
        if question.kind not in get_args(Kind):
            raise InputError(
                f"Expected `kind` of {where} to be one of {', '.join(get_args(Kind))}, but got {question.kind!r}."
            )
        seen.add(question.id)
        yield question
    if not seen:
        raise InputError(
            f"Expected `questions` from {source} to hold at least one question, but it is empty. Give a file or a set with questions."
        )


def questions_hash(questions: Iterable[Question]) -> str:
    """SHA-256 of the question records in their order; part of a store's identity.

    >>> first, second = Question("1", "mine", "1 + 1?"), Question("2", "mine", "1 + 2?")
    >>> questions_hash([first, second]) == questions_hash([second, first])
    False
    """
    return sha256_json_list(question.record() for question in questions)
