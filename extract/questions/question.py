"""`Question`: a prompt and its gold answers."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from string import ascii_uppercase
from typing import Any, Literal

from extract.hashing import sha256_json_list

Kind = Literal["short", "number", "math", "choice", "cloze"]
#: Placeholder for the texts of private questions.
HIDDEN = "(not shown: its authors ask that it stay unpublished)"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answers.

    Attributes:
        id: Id, unique within the set.
        dataset: Name of the set.
        text: Question text, formatted by the policy's prompt template. Exactly one of `text` and `messages` is given.
        messages: Chat of ``{"role", "content"}`` messages, used unchanged instead of a formatted text.
        references: All accepted answers, at least one. For kind `choice`, the letter of the right option comes first
            and its text second.
        kind: Type of the expected answer; it determines graders and parsers.
        choices: Options of a `choice` question, in display order; empty if `messages` contain the options.
        group: Stratum for splits and for the base-rate baseline ("capital", "sum", …).
        meta: Other data. The `short` grader reads ``case_sensitive`` (bool) and ``rivals``, texts of other answers. A
            rival stated before a reference makes an answer wrong. ``worked`` is a solution that ends in the answer, for
            worked examples. ``private`` keeps the texts out of all output for people.
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
        """Text followed by its lettered options, or the messages.

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
        """Whether its texts, and answers that can repeat them, are kept out of tables, pages, logs and messages."""
        return bool(self.meta.get("private"))

    def public(self, text: str) -> str:
        """Return `text`, or a placeholder if the question is private."""
        return HIDDEN if self.private else text

    @property
    def public_prompt(self) -> str:
        """Prompt for display: the text with its options, or the last message; a placeholder if private."""
        return self.public(str(self.messages[-1]["content"] if self.messages else self.prompt))

    def record(self) -> dict[str, Any]:
        """The question as JSON values, the form that is hashed."""
        return asdict(self)


def questions_hash(questions: Iterable[Question]) -> str:
    """SHA-256 of the question records in order; part of a store's identity.

    >>> first, second = Question("1", "mine", "1 + 1?"), Question("2", "mine", "1 + 2?")
    >>> questions_hash([first, second]) == questions_hash([second, first])
    False
    """
    return sha256_json_list(question.record() for question in questions)
