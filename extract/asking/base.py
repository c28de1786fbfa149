"""What every asked baseline has in common: its files in the store, how it asks, and the models that it shares with others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from extract.questions.question import Question
from extract.store.shards import SampleRange, Scope, Shard
from extract.store.store import Store

#: Told of the questions or answers, and of the tokens, that are done.
Done = Callable[[int, int], None]


@dataclass
class Means:
    """What baselines ask with.

    Attributes:
        load: Gives the store's model and tokenizer; called once, and only if one of them is needed.
        device: Where other models go: auto, cpu, cuda or cuda:N.
        embedding_model: Sentence encoder: a name, a Hub id or a folder.
        nli_model: Entailment classifier, or None.
        grader: Whose normalised answers are compared, or None for the only grader.
        max_new_tokens: Longest reply of `verbalized`.
    """

    load: Callable[[], tuple[Any, Any]]
    device: str
    embedding_model: str
    nli_model: str | None
    grader: str | None
    max_new_tokens: int

    @cached_property
    def loaded(self) -> tuple[Any, Any]:
        """The store's model and tokenizer."""
        return self.load()


class Baseline(ABC):
    """A baseline that asks a model, one block or part at a time.

    Args:
        store: The store.
        means: What it asks with.

    Attributes:
        name: Its name in the store.
        scopes: What it asks about.
    """

    name: ClassVar[str]
    scopes: ClassVar[tuple[Scope, ...]] = ("question",)

    def __init__(self, store: Store, means: Means) -> None:
        self.store, self.means = store, means

    @property
    def model(self) -> dict[str, Any]:
        """Identity of the store's model; where a server answered, of the local copy, which is loaded to know it."""
        if self.store.served and self.store.reader is None:
            _ = self.means.loaded
        return self.store.model

    @property
    def always_checked(self) -> bool:
        """Whether settings are compared with those in the store also when nothing is missing."""
        return True

    @abstractmethod
    def how(self, scope: Scope) -> dict[str, Any]:
        """Model, prompts and options, JSON types: the same in all files of a scope."""

    @abstractmethod
    def check_how(self, scope: Scope) -> None:
        """Refuse to go on otherwise than it was begun.

        Raises:
            InputError: What is held was asked otherwise.
        """

    @abstractmethod
    def file(self, place: Shard) -> Path:
        """Where a block or part is kept."""

    @abstractmethod
    def check_file(self, place: Shard) -> None:
        """Look at a finished file.

        Raises:
            Damaged: It is not as it was written, or not of this place.
        """

    def prepare(self) -> None:  # noqa: B027 (there may be nothing left to do)
        """Load what it asks with, as far as `how` did not need it; before the first `fill`.

        Raises:
            InputError: That can't be loaded, or not be asked this way.
        """

    @abstractmethod
    def fill(self, place: Shard, progress: Done) -> int:
        """Ask about a block or part and keep what comes; returns how many rows have no usable value."""

    def questions(self, place: Shard) -> list[Question]:
        """Questions of a block, or of a part's block."""
        return self.store.questions.block(place)

    def answers(self, place: Shard) -> list[dict[str, Any]]:
        """Rows of the samples of a part."""
        assert isinstance(place, SampleRange)
        return self.store.samples.read(place).to_pylist()


class TableBaseline(Baseline):
    """A baseline that is kept as a table of values and what they cost."""

    @abstractmethod
    def rows(self, place: Shard, progress: Done) -> list[dict[str, Any]]:
        """Rows of the table of a block or part, as the store keeps them."""

    def check_how(self, scope: Scope) -> None:
        """Refuse to go on otherwise than it was begun."""
        self.store.asked.check_settings(self.name, scope, self.how(scope))

    def file(self, place: Shard) -> Path:
        """The table's file."""
        return self.store.asked.file(self.name, place)

    def check_file(self, place: Shard) -> None:
        """Read the table."""
        self.store.asked.read_shard(self.name, place)

    def fill(self, place: Shard, progress: Done) -> int:
        """Ask about a block or part and keep the table; returns how many values are null."""
        rows = self.rows(place, progress)
        self.store.asked.write(self.name, place, rows, self.how(place.scope))
        return sum(row["value"] is None for row in rows)


def block_of(place: Shard) -> int:
    """Number of a block, or of a part's block."""
    return place.block
