"""`StoreRecipe`: the settings of a new store, with the same options in the API, the commands and the YAML files."""

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
from extract.schemas import BLOCK_SIZE, check_options, whole

if TYPE_CHECKING:
    from extract.sampling.base import SamplingOptions
    from extract.store.store import Store

_OPTIONS = {
    "k": whole(2, 1_000_000, "from 2 (one answer does not measure how often a model is right) to 1000000"),
    "max_rows": whole(1, 2**31),
    "block_size": BLOCK_SIZE,
}


@fill_names(sets=SETS)
@dataclass(frozen=True)
class StoreRecipe:
    """Questions, a model and its policy.

    Attributes:
        questions: Name of a question set ({sets}; NAME:CONFIG for another configuration), NAME=PATH to read that set
            from a file, path of your own .jsonl, .json, .csv or .parquet file, or a Hugging Face Hub id (ORG/NAME or
            ORG/NAME:CONFIG). docs/questions.md describes the sets.
        n_questions: Size of the seeded subset of the questions; null uses all.
        question_seed: Seed of the subset, of the order, of shuffled choices and of worked examples.
        stratify_by: Field of the questions (group, or a key of meta) whose values get equal shares of n_questions.
        fields: Column names of a file or Hub set, such as '{text: question, references: answer}'; also id, kind,
            choices, group and meta, see docs/questions.md. Null for a set by name, and for a file whose columns have
            these names.
        split: Split of a Hub set; null uses the set's default.
        questions_revision: Commit of a Hub set; null uses the set's default.
        sampler: local runs the model in this process; server sends requests to server.url.
        model: Name of the embedded model, a Hub id, or a folder; for the server sampler its name on the server.
        revision: Commit, branch or tag of a Hub model.
        dtype: auto (the checkpoint's own), float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda:N; not part of the store's identity.
        device_map: Placement of a large model over devices, as in transformers (auto, balanced, …).
        k: Answers to each question, at least 2.
        policy: Decoding of the answers.
        server: Server of the server sampler.
        max_rows: Maximum number of answers drawn together; halved when GPU memory runs out. Not part of the identity.
        block_size: Questions per block, the unit of work and of resuming: 32 for a laptop, 1024 for a large set.
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
        """Load the questions, and return them with the decoding, whose prompt has its worked examples.

        Raises:
            InputError: As for `find_source`, `with_examples` and `subset`.
        """
        source = find_source(self.questions, self.fields, self.split, self.questions_revision)
        questions, prompt = with_examples(source, self.policy.prompt, self.question_seed)
        chosen = subset(questions, self.n_questions, self.question_seed, self.stratify_by, self.questions)
        return chosen, replace(self.policy, prompt=prompt)

    def sampling_options(self) -> SamplingOptions:
        """Options of the sampler."""
        from extract.sampling.base import SamplingOptions

        return SamplingOptions(**{option.name: getattr(self, option.name) for option in fields(SamplingOptions)})

    def check_store(self, store: Store) -> None:
        """Check that a store was made with this recipe, without loading the model.

        The model is compared by name only. Its weights are compared before anything is sampled or read.

        Raises:
            InputError: If decoding, questions, model name, block size or sampler differ.
        """
        from extract.sampling.base import check_identity

        questions, decoding = self.load()
        check_identity(store, self.sampler, self.sampling_options(), questions_hash(questions), decoding)
