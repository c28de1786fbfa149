"""`Question`: what is asked, and what counts as right."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from string import ascii_uppercase
from typing import Any, Literal

from extract.hashing import sha256_json_list

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
        return self.public(str(self.messages[-1]["content"] if self.messages else self.prompt))

    def record(self) -> dict[str, Any]:
        """The question as values of JSON, the form that is hashed."""
        return asdict(self)


def questions_hash(questions: Iterable[Question]) -> str:
    """SHA-256 of the question records in their order; part of a store's identity.

    >>> first, second = Question("1", "mine", "1 + 1?"), Question("2", "mine", "1 + 2?")
    >>> questions_hash([first, second]) == questions_hash([second, first])
    False
    """
    return sha256_json_list(question.record() for question in questions)
