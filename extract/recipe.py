"""`StoreRecipe`: the settings of a new store, with the same options in Python, on the command line and in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from extract.models.embedded import EMBEDDED_MODEL
from extract.policy import Decoding
from extract.questions.question import Question, questions_hash
from extract.questions.sets import SETS
from extract.questions.source import find_source
from extract.questions.subset import subset, with_examples
from extract.registry import fill_names
from extract.samplers import SAMPLERS
from extract.sampling.server.policy import Server
from extract.schemas import BLOCK_SIZE, Field, check_options, whole

if TYPE_CHECKING:
    from extract.sampling.base import SamplingOptions
    from extract.store.store import Store

_OPTIONS = {
    "k": Field("a whole number from 2 to 1000000, or 0", lambda k: k == 0 or whole(2, 1_000_000).holds(k)),
    "max_rows": whole(1, 2**31),
    "block_size": BLOCK_SIZE,
}


@fill_names(sets=SETS)
@dataclass(frozen=True)
class StoreRecipe:
    """Questions, model and policy of a new store.

    Attributes:
        questions: Name of a set of questions ({sets}), path of a .jsonl, .json, .csv or .parquet file, or Hugging Face
            Hub id (ORG/NAME or ORG/NAME:CONFIG). NAME:CONFIG selects a different configuration of a named set.
            NAME=PATH reads a named set from a file. See docs/questions.md.
        n_questions: Size of a random subset of the questions. By default, all questions are used.
        question_seed: Seed for choosing the subset and the worked examples, and for shuffling questions and choices.
        stratify_by: Question field by which the subset is stratified: group, kind, dataset or a key of meta. Each value
            of the field gets the same number of questions if possible.
        fields: Map from question fields to columns of a file or Hub set, such as
            '{text: question, references: answer}'. Other fields are id, kind, choices, group and meta. Not needed for a
            named set, or if the columns already have these names.
        split: Split of a Hub set. By default, the set's default split.
        questions_revision: Commit of a Hub set. By default, the newest commit.
        sampler: local (run the model in this process) or server (send requests to server.url).
        model: Model that answers the questions: smollm2-135m-instruct (installed by `make install`), a Hub id, a
            folder, or the name of a model on the server.
        revision: Commit, branch or tag of a Hub model.
        dtype: auto (the dtype of the checkpoint), float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda:N. Not part of the store's identity.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).
        k: Number of answers to each question: at least 2, or 0 for a store without answers.
        policy: Decoding options.
        server: Settings of the server sampler.
        max_rows: Maximum number of answers per batch. It is halved when GPU memory runs out. Not part of the store's
            identity.
        block_size: Number of questions per block. Each block is processed by a single worker. Use 32 on a laptop. Use
            256 to 1024 for a large set, or if the answers differ widely in length.
    """

    questions: str = "facts"
    n_questions: int | None = None
    question_seed: int = 0
    stratify_by: str | None = None
    fields: dict[str, Any] | None = None
    split: str | None = None
    questions_revision: str | None = None
    sampler: str = "local"
    model: str = EMBEDDED_MODEL
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    k: int = 10
    policy: Decoding = field(default_factory=Decoding)
    server: Server = field(default_factory=Server)
    max_rows: int = 320
    block_size: int = 32

    def __post_init__(self) -> None:
        _ = SAMPLERS[self.sampler]
        check_options(self, _OPTIONS)

    def load(self) -> tuple[list[Question], Decoding]:
        """Load the questions. Return them, and a copy of `policy` with the chosen worked examples.

        Raises:
            InputError: See `find_source`, `with_examples` and `subset`.
        """
        source = find_source(self.questions, self.fields, self.split, self.questions_revision)
        questions, prompt = with_examples(source, self.policy.prompt, self.question_seed)
        chosen = subset(questions, self.n_questions, self.question_seed, self.stratify_by, self.questions)
        return chosen, replace(self.policy, prompt=prompt)

    def sampling_options(self) -> SamplingOptions:
        """Return the options for the sampler."""
        from extract.sampling.base import SamplingOptions

        return SamplingOptions(**{option.name: getattr(self, option.name) for option in fields(SamplingOptions)})

    def check_store(self, store: Store) -> None:
        """Check that a store was made with this recipe. Models are compared only by name.

        Raises:
            InputError: If the decoding settings, questions, model name, block size or sampler differ.
        """
        from extract.sampling.base import check_identity

        questions, decoding = self.load()
        check_identity(store, self.sampler, self.sampling_options(), questions_hash(questions), decoding)
