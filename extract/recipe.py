"""`StoreRecipe`: what a store is made from, the same options for the API, the commands and the YAML files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from extract.errors import InputError
from extract.models.embedded import EMBEDDED_MODEL
from extract.policy import SAMPLER_VERSION, SERVED_VERSION, Decoding, Identity
from extract.questions.examples import with_examples
from extract.questions.question import Question, questions_hash
from extract.questions.source import find_source
from extract.questions.subset import subset
from extract.sampling.server.options import Server
from extract.sampling.server.policy import served_policy
from extract.store.store import Store

MOST_SAMPLES = 1_000_000
LARGEST_BLOCK = 1_000_000


@dataclass(frozen=True)
class StoreRecipe:
    """Questions, a model, and how it answers them.

    Attributes:
        questions: Name of a question set (facts, gsm8k, mmlu, … in docs/questions.md; NAME:CONFIG for another configuration),
            NAME=PATH to read that set from a file, path of a .jsonl, .json, .csv or .parquet file of your own, or an id on
            the Hugging Face Hub (ORG/NAME or ORG/NAME:CONFIG).
        n_questions: Size of the seeded subset of the questions; null takes all.
        question_seed: Seed of the subset, of the order, of shuffled choices and of worked examples.
        stratify_by: Field of the questions (group, or a key of meta) whose values get equal shares of n_questions.
        fields: For a file or a Hub id: the columns with the question and its right answers, as in '{text: question,
            references: answer}'; also id, kind, choices, group and meta, see docs/questions.md. Null for a set by name, and
            for a file whose columns have these names.
        split: Split of a Hub set; null takes the set's own.
        questions_revision: Commit of a Hub set; null takes the set's own.
        sampler: local draws with the model in this process, server asks the one behind server.url.
        model: Name of the embedded model, a Hub id, or a folder; for the server sampler what the server calls it.
        revision: Commit, branch or tag of a Hub model.
        dtype: auto (the checkpoint's own), float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda:N; changes no identity.
        device_map: How transformers spreads a large model over devices.
        k: Answers to each question, at least 2.
        policy: How answers are drawn.
        server: The server, for the server sampler.
        max_rows: Most answers drawn at the same time; halved when a GPU's memory is full. Changes no identity.
        block_size: Questions in a block, the unit of work and of resuming: 32 for a laptop, 1024 for a large set.
    """

    questions: str = "facts"
    n_questions: int | None = None
    question_seed: int = 0
    stratify_by: str | None = None
    fields: dict[str, Any] | None = None
    split: str | None = None
    questions_revision: str | None = None
    sampler: Literal["local", "server"] = "local"
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
        if self.k < 2:
            raise InputError(
                f"Expected `k` to be at least 2, because one answer can't tell how often a model is right, but got {self.k}. Ask for 10 or more."
            )
        if self.k > MOST_SAMPLES:
            raise InputError(f"Expected `k` to be at most {MOST_SAMPLES}, but got {self.k}. 100 is many.")
        if self.max_rows < 1:
            raise InputError(f"Expected `max_rows` to be at least 1, but got {self.max_rows}. 320 suits most models.")
        if not 1 <= self.block_size <= LARGEST_BLOCK:
            raise InputError(
                f"Expected `block_size` to be from 1 to {LARGEST_BLOCK}, but got {self.block_size}. 32 suits a laptop."
            )

    def load(self) -> tuple[list[Question], Decoding]:
        """The questions that are asked, and how they are answered, with the worked examples in the prompt.

        Raises:
            InputError: As `find_source`, `with_examples` and `subset`.
        """
        source = find_source(self.questions, self.fields, self.split, self.questions_revision)
        questions, prompt = with_examples(source, self.policy.prompt, self.question_seed)
        chosen = subset(questions, self.n_questions, self.question_seed, self.stratify_by, self.questions)
        return chosen, replace(self.policy, prompt=prompt)

    def check_store(self, store: Store, questions: Iterable[Question] | None = None) -> None:
        """Refuse a store that this recipe would not make, as far as that shows without loading the model.

        The model is compared by name here, and by its weights before anything is sampled or read.

        Args:
            store: The store.
            questions: The recipe's questions, where they were loaded already; the policy then has its worked examples.

        Raises:
            InputError: Decoding, questions, model name or block size differ.
        """
        of, decoding = store.identity, self.policy
        if questions is None:
            questions, decoding = self.load()
        if self.sampler == "server":
            store.check_identity(self.served_identity(questions_hash(questions), decoding).as_dict())
            return
        policy = {"model": of["policy"]["model"], "decoding": decoding.record()}
        wanted = {
            **of,
            "block_size": self.block_size,
            "questions": questions_hash(questions),
            "policy": policy,
        }
        folder = Path(self.model)
        name = folder.resolve().name if folder.is_dir() else self.model
        asked = {"id": name, "dtype": self.dtype, "revision": self.revision}
        # "auto", and a branch's name, stand for what is known only once the model is loaded
        known = {
            key: value
            for key, value in asked.items()
            if value not in ("auto", None) and (key != "revision" or len(value) == 40)
        }
        policy["model"] = {**of["policy"]["model"], **known}
        if store.served:
            wanted["sampler"] = SAMPLER_VERSION
        store.check_identity(wanted)

    def served_identity(self, questions: str, decoding: Decoding) -> Identity:
        """The identity of a store of the recipe, for the server sampler.

        Args:
            questions: Hash of the questions.
            decoding: The policy with its worked examples.
        """
        policy = served_policy(self.model, decoding, self.server)
        return Identity(policy, questions, self.block_size, SERVED_VERSION)
