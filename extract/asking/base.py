"""Base classes for model-based baselines, and the loop that computes missing values."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from extract.asking.registry import ASKED
from extract.grading.base import without_reasoning
from extract.grading.text import first_line
from extract.hashing import sha256_text
from extract.likelihood.options import Continuations
from extract.models.embedded import EMBEDDED_ENCODER
from extract.prompts import PromptTemplate
from extract.running.progress import say
from extract.running.worker import Lazy, Worker
from extract.store.asked import Asked
from extract.store.fill import fill, is_written, missing_shards
from extract.store.shards import SampleRange, Scope, Shard
from extract.store.signals import Signals
from extract.store.store import Store

#: Progress callback. It receives the number of newly finished questions or answers, and the number of their tokens.
Done = Callable[[int, int], None]


@dataclass
class AskContext:
    """Models and options of the model-based baselines.

    Attributes:
        load: Function that returns the store's model and tokenizer, which are loaded once.
        device: Device of the sentence encoder and the entailment classifier: auto, cpu, cuda or cuda:N.
        embedding_model: Sentence encoder: `EMBEDDED_ENCODER`, a Hub id or a folder.
        nli_model: Hub id or folder of an entailment classifier, or None.
        grader: Grader that normalises answers for `entailment`. By default, the store's only grader.
        max_new_tokens: Maximum length of a reply for `verbalized`, in tokens.
        continuations: Part of each option that the `likelihood` baseline scores: ``letters`` (A, B, …) or ``texts``.
    """

    load: Lazy[tuple[Any, Any]]
    device: str = "auto"
    embedding_model: str = EMBEDDED_ENCODER
    nli_model: str | None = None
    grader: str | None = None
    max_new_tokens: int = 48
    continuations: Continuations = "letters"


class AskedBaseline(ABC):
    """Baseline that queries a model about one shard of a store at a time. `name` is the baseline's key in `ASKED`."""

    def __init__(self, name: str, store: Store, context: AskContext) -> None:
        self.name, self.store, self.context = name, store, context
        self.scopes = ASKED[name].scopes

    def __reduce__(self) -> tuple[type[Self], tuple[str, Store, AskContext]]:
        # Ray actors load the models themselves
        return type(self), (self.name, self.store, self.context)

    @property
    def model(self) -> dict[str, Any]:
        """Identity of the store's model.

        The identity of a served model is unknown until a local copy is loaded. If it is unknown, this property loads
        the local copy.
        """
        if self.store.model_is_unknown:
            self.context.load()
        return self.store.model

    @property
    def always_compared(self) -> bool:
        """Whether to check the settings against the recorded ones even if no values are missing."""
        return True

    @abstractmethod
    def settings(self, scope: Scope) -> dict[str, Any]:
        """Return the settings as JSON values: the model, the prompts and the options.

        All shards of the same scope must have the same settings.
        """

    @property
    def values(self) -> Asked | Signals:
        """Part of the store that contains the baseline's values."""
        return self.store.asked

    def check_file(self, shard: Shard) -> None:
        """Read a finished file. Raises `Damaged` if it is damaged or belongs to another shard."""
        self.store.asked.read_shard(self.name, shard)

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Load what `fill` needs. Called once, before the first `fill`.

        Raises:
            InputError: If a model can't be loaded or does not support this baseline.
        """

    @abstractmethod
    def fill(self, shard: Shard, progress: Done) -> int:
        """Query the model and write the file of a shard. Return the number of rows without a usable value."""

    def questions(self, shard: Shard) -> dict[str, str]:
        """Return a dict from question id to text. The text of a chat has one line ``role: content`` per message."""
        texts = {}
        for question in self.store.questions.block(shard):
            prompt = question.prompt
            lines = [prompt] if isinstance(prompt, str) else [f"{turn['role']}: {turn['content']}" for turn in prompt]
            texts[question.id] = "\n".join(lines)
        return texts

    def answers(self, shard: Shard) -> list[dict[str, Any]]:
        """Return the sampled answers in a shard as rows of the samples table."""
        assert isinstance(shard, SampleRange)
        return self.store.samples.read(shard).to_pylist()


class AskedTable(AskedBaseline):
    """Baseline that stores its values and token counts as a table."""

    @abstractmethod
    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return the rows of a shard's table, with the columns that `Asked.write` expects."""

    def fill(self, shard: Shard, progress: Done) -> int:
        """See `AskedBaseline.fill`."""
        rows = self.rows(shard, progress)
        self.store.asked.write(self.name, shard, rows, self.settings(shard.scope))
        return sum(row["value"] is None for row in rows)


def fill_asked(store: Store, baselines: Sequence[AskedBaseline], worker: Worker) -> None:
    """Compute all missing values of `baselines`. Their settings must match those recorded in the store."""
    missing = {}
    for baseline in baselines:
        shards = [shard for scope in baseline.scopes for shard in store.shards(scope)]
        file = partial(baseline.values.file, baseline.name)
        missing[baseline.name] = missing_shards(store, shards, worker, file, baseline.check_file)
    compared = [baseline for baseline in baselines if missing[baseline.name] or baseline.always_compared]
    for baseline, settings in zip(compared, worker.once(partial(_settings, compared)), strict=True):
        for scope, of_scope in settings.items():
            baseline.values.check_settings(baseline.name, scope, of_scope)
    for baseline in baselines:
        shards = missing[baseline.name]
        if not shards:
            say(f"ask: {baseline.name} already exists for every {' and '.join(baseline.scopes)}")
            continue
        n_rows = store.questions.n_rows
        n_unusable = sum(fill(f"ask {baseline.name}", "asked", shards, n_rows, partial(_asking, baseline), worker))
        say(f"ask: computed {sum(map(n_rows, shards))} values of {baseline.name}, {n_unusable} of them unusable")


def _settings(baselines: Sequence[AskedBaseline]) -> list[dict[Scope, dict[str, Any]]]:
    """Return a dict from scope to settings for each baseline. This loads a model for some baselines."""
    return [{scope: baseline.settings(scope) for scope in baseline.scopes} for baseline in baselines]


@contextmanager
def _asking(baseline: AskedBaseline) -> Iterator[Callable[[Shard, Done], int]]:
    """Load the models of a baseline, and yield a function that fills in missing shards."""
    baseline.prepare()

    def fill(shard: Shard, progress: Done) -> int:
        return 0 if is_written(lambda: baseline.check_file(shard)) else baseline.fill(shard, progress)

    yield fill


def asking_prompt(policy: dict[str, Any], template: str) -> PromptTemplate:
    """Build the prompt template for querying the store's model.

    If the tokenizer has a chat template, it is applied together with the policy's system message, even if the policy's
    prompt is plain text.
    """
    chat = policy["model"]["chat_template"] != sha256_text("")
    return PromptTemplate(template, policy["decoding"]["prompt"]["system"] if chat else None, chat)


def answer_line(text: str) -> str:
    """Return the first non-blank line after removing an answer's reasoning, or "" if there is no such line."""
    return first_line(without_reasoning(text))
