"""`Question`: what is asked, and what counts as right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from string import ascii_uppercase
from typing import Any, Literal, get_args

from extract.errors import InputError
from extract.hashing import canonical_json, sha256_json_list
from extract.questions.numbers import numbers
from extract.text import normalize, shown

Kind = Literal["short", "number", "math", "choice", "cloze"]
#: Stands in the place of a text of a private question.
HIDDEN = "(not shown: its authors ask that it stay unpublished)"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answers.

    Attributes:
        id: Unique within its set.
        dataset: Name of the set it comes from.
        text: The question, rendered by the policy's prompt. Exactly one of `text` and `messages` is given.
        messages: A chat of ``{"role", "content"}`` used as it is instead of a rendered text.
        references: Every form of the answer that counts as right; at least one. Of a `choice` question the right
            option's letter comes first, and then its text.
        kind: What sort of answer is expected; graders and parsers look at it.
        choices: Options of a `choice` question, in the order shown; a chat of messages holds them itself.
        group: Stratum for splits and for the base-rate baseline ("capital", "sum", …).
        meta: Anything else. For the `short` grader: ``case_sensitive`` (bool), and ``rivals`` (texts), other
            answers that make the answer wrong when they are said before a reference. ``worked`` is a solution that
            ends in the answer, which stands in worked examples; ``private`` keeps the texts out of whatever people see.
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

    @property
    def prompt(self) -> str | tuple[dict[str, str], ...]:
        """What is asked: the text with its lettered options under it, or the messages.

        >>> print(Question("1", "mine", "Which is odd?", kind="choice", choices=("2", "3")).prompt)
        Which is odd?
        A. 2
        B. 3
        """
        if self.messages:
            return self.messages
        options = self.choices if self.kind == "choice" else ()
        lettered = (f"{letter}. {option}" for letter, option in zip(ascii_uppercase, options, strict=False))
        return "\n".join((self.text, *lettered))

    @property
    def private(self) -> bool:
        """Whether its texts, and answers that may repeat them, are kept out of tables, pages, logs and messages."""
        return bool(self.meta.get("private"))

    def public(self, text: str) -> str:
        """A text of the question, or an answer to it, for people: the text itself, unless the question is private."""
        return HIDDEN if self.private else text

    @property
    def public_prompt(self) -> str:
        """What is asked, for people: the text with its options, or the last message; nothing of a private question."""
        asked = self.prompt
        return self.public(asked if isinstance(asked, str) else str(asked[-1]["content"]))

    def record(self) -> dict[str, Any]:
        """The question as plain JSON types, the form that is hashed."""
        return {
            **asdict(self),
            "messages": list(self.messages),
            "references": list(self.references),
            "choices": list(self.choices),
        }


def check_questions(questions: Iterable[Question], source: str) -> Iterator[Question]:
    """Pass new questions on one by one, or say what is wrong with them. Stores are opened without this check.

    Args:
        questions: The questions.
        source: Where they are from, for messages.

    Raises:
        InputError: There is no question, an id is missing or repeated, or a question breaks a rule of its kind.
    """
    seen: set[str] = set()
    for number, question in enumerate(questions, 1):
        where = f"question {question.id!r} (number {number} of {source})"
        if not question.id:
            raise InputError(
                f"Expected every question to have an `id`, but number {number} of {source} has none. "
                "Add one that is unique in the set."
            )
        if question.id in seen:
            raise InputError(
                f"Expected question ids to be unique, but {where} repeats an earlier one. Rename or remove one."
            )
        problem = next(_problems(question, where), None)
        if problem is not None:
            raise InputError(problem)
        seen.add(question.id)
        yield question
    if not seen:
        raise InputError(
            f"Expected `questions` from {source} to hold at least one question, but it is empty. "
            "Give a file or a set with questions."
        )


def _problems(question: Question, where: str) -> Iterator[str]:
    """Messages about the rules that a question breaks; each may rely on those before it."""
    kind, references, choices = question.kind, question.references, question.choices
    if kind not in get_args(Kind):
        yield f"Expected `kind` of {where} to be one of {', '.join(get_args(Kind))}, but got {kind!r}."
    if bool(question.text.strip()) == bool(question.messages):
        yield f"Expected {where} to have exactly one of `text` and `messages`. Give one of them."
    for message in question.messages:
        texts = message.values() if isinstance(message, dict) and message.keys() == {"role", "content"} else [None]
        if not all(isinstance(text, str) for text in texts):
            yield (
                f"Expected `messages` of {where} to hold objects of a `role` and a `content`, both texts, but got "
                f"{question.public(shown(message))}. Correct the field."
            )
    if question.messages and not question.messages[-1]["content"].strip():
        yield (
            f"Expected the last of `messages` of {where} to say what is asked, but its content is empty. "
            "Correct it, or remove the question."
        )
    try:
        canonical_json(question.record()).encode()
    except (TypeError, ValueError) as error:
        yield (
            f"Expected {where} to hold text and finite numbers only, but it does not: {error}. Correct the question."
        )
    if not references:
        yield (
            f"Expected `references` of {where} to hold at least one gold answer, but it has none. "
            "Add one or remove the question."
        )
    for reference in references:
        if not says_anything(kind, reference):
            yield (
                f"Expected `references` of {where} to hold words or numbers, but got "
                f"{question.public(shown(reference))}. Correct the reference."
            )
        if kind == "number" and len(numbers(reference)) != 1:
            yield (
                f"Expected `references` of {where} to be a number each, because its kind is number, but got "
                f"{question.public(shown(reference))}. Correct the reference, or give another kind."
            )
    if kind == "choice" and question.text and not choices:
        yield (
            f"Expected {where} to have `choices`, because its kind is choice, but it has none. "
            "Add the texts of its options, or give another kind."
        )
    letters = tuple(ascii_uppercase[: len(choices) or None])
    if kind == "choice" and (len(choices) > len(letters) or references[0] not in letters):
        yield (
            f"Expected `references` of {where} to begin with the letter of the right one of at most 26 `choices`, but "
            f"got {question.public(shown(references[0]))}. Give the letter first, as in [B, Lima]."
        )


def says_anything(kind: str, reference: str) -> bool:
    """Whether a reference can be graded by: one of words needs words, others any character.

    >>> says_anything("short", "?!"), says_anything("math", "+")
    (False, True)
    """
    return bool(normalize(reference) if kind in ("short", "cloze") else reference.strip())


def questions_hash(questions: Iterable[Question]) -> str:
    """SHA-256 of the question records in their order; part of a store's identity.

    >>> first, second = Question("1", "mine", "1 + 1?"), Question("2", "mine", "1 + 2?")
    >>> questions_hash([first, second]) == questions_hash([second, first])
    False
    """
    return sha256_json_list(question.record() for question in questions)
