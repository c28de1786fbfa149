"""Base classes of the asked baselines, the prompts that they share, and the loop that fills a store with them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from extract.asking.registry import ASKED
from extract.grading.base import without_reasoning
from extract.grading.text import first_line
from extract.hashing import sha256_text
from extract.prompts import PromptTemplate
from extract.running.progress import say
from extract.running.worker import Worker
from extract.store.asked import Asked
from extract.store.fill import fill, missing_shards
from extract.store.shards import SampleRange, Scope, Shard
from extract.store.signals import Signals
from extract.store.store import Store

#: Called with the number of questions or answers, and of tokens, that are done.
Done = Callable[[int, int], None]


@dataclass
class AskContext:
    """Models and options that baselines ask with.

    Attributes:
        load: Returns the store's model and tokenizer, which it loads when it is first called.
        device: Device of other models: auto, cpu, cuda or cuda:N.
        embedding_model: Sentence encoder: a name, a Hub id or a folder.
        nli_model: Entailment classifier, or None.
        grader: Grader whose normalised answers are compared; None takes the only one.
        max_new_tokens: Longest reply of `verbalized`.
    """

    load: Callable[[], tuple[Any, Any]]
    device: str
    embedding_model: str
    nli_model: str | None
    grader: str | None
    max_new_tokens: int


class AskedBaseline(ABC):
    """A baseline that asks a model, one shard at a time. Its `name` is that in the registry and in the store."""

    def __init__(self, name: str, store: Store, context: AskContext) -> None:
        self.name, self.store, self.context = name, store, context
        self.scopes = ASKED[name].scopes

    @property
    def model(self) -> dict[str, Any]:
        """Identity of the store's model. For a served model, the local copy is loaded to know it."""
        if not self.store.samples.provides.weights and self.store.reader is None:
            self.context.load()
        return self.store.model

    @property
    def always_compared(self) -> bool:
        """Whether the settings are compared with those in the store even if nothing is missing."""
        return True

    @abstractmethod
    def settings(self, scope: Scope) -> dict[str, Any]:
        """Model, prompts and options, JSON types: the same in all files of a scope."""

    @property
    def values(self) -> Asked | Signals:
        """The part of the store that holds the values."""
        return self.store.asked

    def check_file(self, shard: Shard) -> None:
        """Read a finished file.

        Raises:
            Damaged: The file is damaged, or belongs to another shard.
        """
        self.store.asked.read_shard(self.name, shard)

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Load what `settings` did not need. Called once, before the first `fill`.

        Raises:
            InputError: A model can't be loaded, or can't be asked this way.
        """

    @abstractmethod
    def fill(self, shard: Shard, progress: Done) -> int:
        """Ask about a shard and write its file; returns the number of rows without a usable value."""

    def questions(self, shard: Shard) -> dict[str, str]:
        """Texts of a shard's questions by id, with their options; of a chat, a line for each message after its role."""
        texts = {}
        for question in self.store.questions.block(shard):
            prompt = question.prompt
            lines = [prompt] if isinstance(prompt, str) else [f"{turn['role']}: {turn['content']}" for turn in prompt]
            texts[question.id] = "\n".join(lines)
        return texts

    def answers(self, shard: Shard) -> list[dict[str, Any]]:
        """Rows of the samples of a shard."""
        assert isinstance(shard, SampleRange)
        return self.store.samples.read(shard).to_pylist()


class AskedTable(AskedBaseline):
    """A baseline whose values are stored as a table, with the tokens that they cost."""

    @abstractmethod
    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Rows of a shard's table, in the columns of `Asked.write`."""

    def fill(self, shard: Shard, progress: Done) -> int:
        """Ask about a shard and write its table; returns the number of null values."""
        rows = self.rows(shard, progress)
        self.store.asked.write(self.name, shard, rows, self.settings(shard.scope))
        return sum(row["value"] is None for row in rows)


def fill_asked(store: Store, baselines: Sequence[AskedBaseline], worker: Worker) -> None:
    """Ask what is missing. All settings are compared with those in the store before the first model is asked.

    Raises:
        InputError: Settings differ, or a model can't be loaded or asked.
    """
    missing = {}
    for baseline in baselines:
        shards = [shard for scope in baseline.scopes for shard in store.shards(scope)]
        file = partial(baseline.values.file, baseline.name)
        missing[baseline.name] = missing_shards(store, shards, worker, file, baseline.check_file)
    for baseline in baselines:
        if missing[baseline.name] or baseline.always_compared:
            for scope in baseline.scopes:
                baseline.values.check_settings(baseline.name, scope, baseline.settings(scope))
    for baseline in baselines:
        shards = missing[baseline.name]
        if not shards:
            say(f"ask: {baseline.name} is there for every {' and '.join(baseline.scopes)}")
            continue
        baseline.prepare()
        n_rows = store.questions.n_rows
        n_unusable = sum(fill(f"ask {baseline.name}", "asked", shards, n_rows, baseline.fill, worker))
        say(f"ask: {baseline.name}, {sum(map(n_rows, shards))} asked, {n_unusable} without a usable value")


def asking_prompt(policy: dict[str, Any], template: str) -> PromptTemplate:
    """Prompt of a question to the store's model, from the `policy` of its identity and a text with one ``{question}``.

    It uses the chat template wherever the tokenizer has one, even if the policy's own prompt is plain text for the
    model to continue. The policy's system message stays.
    """
    chat = policy["model"]["chat_template"] != sha256_text("")
    return PromptTemplate(template, policy["decoding"]["prompt"]["system"] if chat else None, chat)


def answer_line(text: str) -> str:
    """The first line of an answer, without the reasoning before it; empty for an empty answer."""
    return first_line(without_reasoning(text))
