"""Base classes for model-based baselines, and the loop that computes the missing values of a store."""

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

#: Progress callback. It receives the number of newly finished questions or answers, and the number of tokens in them.
Done = Callable[[int, int], None]


@dataclass
class AskContext:
    """Models and options of the model-based baselines.

    Attributes:
        load: Function that returns the store's model and tokenizer. The first call in a process loads them.
        device: Device of the sentence encoder and the entailment classifier: auto, cpu, cuda or cuda:N.
        embedding_model: Name of the embedded sentence encoder (`EMBEDDED_ENCODER`), or the Hub id or folder of another
            encoder.
        nli_model: Hub id or folder of an entailment classifier. None if no baseline uses it.
        grader: Name of the grader that normalises answers for the baseline `entailment`. By default, the store's only
            grader.
        max_new_tokens: Maximum number of tokens in a reply for the baseline `verbalized`.
        continuations: Whether the baseline `likelihood` scores the letters or the texts of the options.
    """

    load: Lazy[tuple[Any, Any]]
    device: str = "auto"
    embedding_model: str = EMBEDDED_ENCODER
    nli_model: str | None = None
    grader: str | None = None
    max_new_tokens: int = 48
    continuations: Continuations = "letters"


class AskedBaseline(ABC):
    """Baseline that queries a model about one shard of a store at a time.

    The attribute `name` is the baseline's key in the registry and in the store.
    """

    def __init__(self, name: str, store: Store, context: AskContext) -> None:
        self.name, self.store, self.context = name, store, context
        self.scopes = ASKED[name].scopes

    def __reduce__(self) -> tuple[type[Self], tuple[str, Store, AskContext]]:
        # the Ray engine sends this object to actors of its own job, where each actor loads the models itself
        return type(self), (self.name, self.store, self.context)

    @property
    def model(self) -> dict[str, Any]:
        """Identity of the store's model. For a served model, this is the identity of its local copy.

        The copy is loaded if its identity is not known yet.
        """
        if self.store.model_is_unknown:
            self.context.load()
        return self.store.model

    @property
    def always_compared(self) -> bool:
        """Whether to compare the settings with the recorded settings even if no values are missing."""
        return True

    @abstractmethod
    def settings(self, scope: Scope) -> dict[str, Any]:
        """Return the settings as JSON values: the model, the prompts and the options.

        All files of the baseline for one scope must have the same settings.
        """

    @property
    def values(self) -> Asked | Signals:
        """Part of the store that contains the baseline's values."""
        return self.store.asked

    def check_file(self, shard: Shard) -> None:
        """Check a finished file by reading it.

        Raises:
            Damaged: If the file is damaged or was written for a different shard.
        """
        self.store.asked.read_shard(self.name, shard)

    def prepare(self) -> None:  # noqa: B027 (optional)
        """Load the models and tokenizers that `fill` needs. Called once, before the first `fill`.

        Raises:
            InputError: If a model can't be loaded or does not support this baseline.
        """

    @abstractmethod
    def fill(self, shard: Shard, progress: Done) -> int:
        """Query the model and write the file of a shard. Return the number of rows without a usable value."""

    def questions(self, shard: Shard) -> dict[str, str]:
        """Return the text of each question in a shard, by question id.

        For a chat, the text has one line ``role: content`` per message.
        """
        texts = {}
        for question in self.store.questions.block(shard):
            prompt = question.prompt
            lines = [prompt] if isinstance(prompt, str) else [f"{turn['role']}: {turn['content']}" for turn in prompt]
            texts[question.id] = "\n".join(lines)
        return texts

    def answers(self, shard: Shard) -> list[dict[str, Any]]:
        """Return the sampled answers in a shard as rows of the store's table of samples."""
        assert isinstance(shard, SampleRange)
        return self.store.samples.read(shard).to_pylist()


class AskedTable(AskedBaseline):
    """Baseline that stores its values and token counts as a table."""

    @abstractmethod
    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return the rows of a shard's table, with the columns that `Asked.write` expects."""

    def fill(self, shard: Shard, progress: Done) -> int:
        """Query the model and write the table of a shard. Return the number of rows without a value."""
        rows = self.rows(shard, progress)
        self.store.asked.write(self.name, shard, rows, self.settings(shard.scope))
        return sum(row["value"] is None for row in rows)


def fill_asked(store: Store, baselines: Sequence[AskedBaseline], worker: Worker) -> None:
    """Compute all missing values of the given baselines.

    First, the settings of the baselines are compared with the settings recorded in the store.

    Raises:
        InputError: If the settings differ from the recorded settings, or a model can't be loaded or queried.
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
            say(f"ask: {baseline.name} already exists for every {' and '.join(baseline.scopes)}")
            continue
        n_rows = store.questions.n_rows
        n_unusable = sum(fill(f"ask {baseline.name}", "asked", shards, n_rows, partial(_asking, baseline), worker))
        say(f"ask: computed {sum(map(n_rows, shards))} values of {baseline.name}, {n_unusable} of them unusable")


@contextmanager
def _asking(baseline: AskedBaseline) -> Iterator[Callable[[Shard, Done], int]]:
    """Load the models of a baseline, and yield a function that writes the file of a shard unless the file exists."""
    baseline.prepare()

    def fill(shard: Shard, progress: Done) -> int:
        return 0 if is_written(lambda: baseline.check_file(shard)) else baseline.fill(shard, progress)

    yield fill


def asking_prompt(policy: dict[str, Any], template: str) -> PromptTemplate:
    """Build the prompt template for querying the store's model.

    The prompt uses the tokenizer's chat template if there is one, even if the policy's own prompt is plain text. A chat
    prompt keeps the policy's system message.

    Args:
        policy: The `policy` entry of a store's identity.
        template: Text with the placeholder ``{question}``.
    """
    chat = policy["model"]["chat_template"] != sha256_text("")
    return PromptTemplate(template, policy["decoding"]["prompt"]["system"] if chat else None, chat)


def answer_line(text: str) -> str:
    """Remove the reasoning from an answer, and return the first non-blank line of the rest ("" if there is none)."""
    return first_line(without_reasoning(text))
