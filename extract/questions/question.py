"""`Question`: a prompt and its gold answers."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from string import ascii_uppercase
from typing import Any, Literal

from extract.hashing import sha256_json_list

Kind = Literal["short", "number", "math", "choice", "cloze"]
#: Placeholder for the texts of private questions.
HIDDEN = "(not shown: the question is private)"


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold answers.

    Attributes:
        id: Unique id.
        dataset: Name of the set.
        text: Question text for the policy's prompt template, unless `messages` are given.
        messages: Chat of ``{"role", "content"}`` messages, used without the prompt template.
        references: All accepted answers. For the `choice` kind, the letter and the text of the correct option.
        kind: Type of the expected answer, which determines the default grader.
        choices: Options of a `choice` question, in display order. Empty if `messages` contain the options.
        group: Group of the question, such as "capital", for stratified splits and base rates.
        meta: Other data. The `short` grader reads ``case_sensitive`` (bool) and ``rivals`` (wrong answers). An answer
            that states a rival before any reference is graded as wrong. ``worked`` is a solution that ends with the
            answer, used in worked examples. If ``private`` is true, the texts are never displayed.
        row: 0-based position in the source, or None. Not part of a store's identity.
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
    row: int | None = field(default=None, compare=False)

    @property
    def prompt(self) -> str | tuple[dict[str, str], ...]:
        """The question's text and its lettered options, or its messages.

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
        """Whether the question's texts and answers must stay hidden."""
        return bool(self.meta.get("private"))

    def public(self, text: str) -> str:
        """Return `text`, or a placeholder if the question is private."""
        return HIDDEN if self.private else text

    def meta_label(self, key: str) -> str:
        """Return ``meta[key]`` as text, or an empty string if it is neither a string nor a number."""
        value = self.meta.get(key)
        return str(value) if isinstance(value, str | int | float) else ""

    @property
    def public_prompt(self) -> str:
        """Prompt for display: the question with its answer options, or the last message of a chat.

        If the question is private, a placeholder is returned.
        """
        return self.public(str(self.messages[-1]["content"] if self.messages else self.prompt))

    def record(self) -> dict[str, Any]:
        """Convert the question to a dict of JSON values, without `row`."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "row"}


def questions_hash(questions: Iterable[Question]) -> str:
    """SHA-256 of the question records in order. It is part of a store's identity.

    >>> first, second = Question("1", "mine", "1 + 1?"), Question("2", "mine", "1 + 2?")
    >>> questions_hash([first, second]) == questions_hash([second, first])
    False
    """
    return sha256_json_list(question.record() for question in questions)
