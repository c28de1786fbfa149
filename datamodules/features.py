"""Datamodule with batches of a store's features and targets, split by question."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import lightning as L
import torch
from torch import Tensor

from datamodules.batches import Batch, Batches
from datamodules.feature_spec import FeatureSpec
from datamodules.semantic import clusters_of, discrete_entropy, entropy_threshold, seu
from datamodules.splits import SPLITS, check_validation, split_questions
from datamodules.table import QuestionTable, load_table, split_rows
from extract.errors import InputError, at_least_one
from extract.recipe import StoreRecipe
from extract.registry import Registry
from extract.store.shards import Scope
from extract.store.store import Store

#: Scope of each probe target.
TARGETS: Registry[Scope] = Registry(
    "target", {"capability": "question", "semantic_entropy": "question", "seu": "question", "response": "sample"}
)


class FeatureDataModule(L.LightningDataModule):
    """Features and targets of a store's questions or answers, split by question.

    Args:
        store: Folder of the store.
        recipe: Recipe of the store. A missing store is created from it, and an existing store must match it. If null,
            the store must exist.
        grader: Grader whose grades define the target. If null, the store's only grader is used. A new store is graded
            with the default grader for its questions.
        target: Target of the probe. `capability`: how often the question is answered correctly. `semantic_entropy`:
            whether the semantic entropy of the question's answers is low. `seu`: the mean cosine similarity between the
            embeddings of the question's answers. `response`: whether an answer is right.
        signal: Signal to read. `hidden_tokens` is for probes that read all tokens of an answer.
        positions: Token positions of the signal. The default is `last_prompt` for questions, `last_answer` for answers,
            and all positions for token signals.
        layers: Layers to use. If null, all layers are used.
        join: Token signals whose values are appended to every feature. Each entry is SIGNAL or SIGNAL/POSITION.
        pooling: How to pool the tokens of an answer: names from `extract.signals.pooling`, `windows_4` (means over
            quarters of the answer) or `distribution` (shape of the entropy curve, for tokens/entropy only). The default
            is mean, std and max.
        weights: Weights of the pooled tokens: entropy, prob (1 minus the largest next-token probability), or
            SIGNAL/POSITION, such as rollout/norm_element_mean_token.
        prefixes: Whether to also train on the first quarter, half and three quarters of each answer, for streaming.
            Requires the `hidden_tokens` signal.
        val_fraction: Fraction of the questions in the validation split.
        test_fraction: Fraction of the questions in the test split.
        split_seed: Seed of the split.
        batch_size: Number of questions per batch. For the `response` target, number of answers and prefixes per batch.
        broader: Stores with other kinds of questions, or other wordings, for the same model. A second probe is trained
            on their questions and on the training and validation questions of `store`. If a question is unlike the
            questions of `store`, its confidence is shifted towards the mean accuracy of the training and validation
            questions. If such a question resembles the second probe's training questions, its confidence is also
            shifted towards that probe's confidence.
        in_memory: Whether the features are held in memory. If false, they are read from the store in chunks. The
            features of `broader` stores are always held in memory.
        num_workers: Number of threads that read chunks if `in_memory` is false.

    Attributes:
        question_rows: Rows of the question table in each split.
        split_rows: Rows of the answer table (for the `response` target) or of the question table (otherwise) in each
            split.
        feature_names: Name of each feature: ``layer/position``, or the name of a token signal.
        pooled: Specification of the token features, or None.
        n_unusable: Number of unusable questions or answers, which are not in any split.
    """

    def __init__(
        self,
        store: str = "stores/facts",
        recipe: StoreRecipe | None = None,
        grader: str | None = None,
        target: str = "capability",
        signal: str = "hidden",
        positions: list[str] | None = None,
        layers: list[int] | None = None,
        join: list[str] | None = None,
        pooling: list[str] | None = None,
        weights: str | None = None,
        prefixes: bool = False,
        val_fraction: float = 0.2,
        test_fraction: float = 0.2,
        split_seed: int = 0,
        batch_size: int = 64,
        broader: list[str] | None = None,
        in_memory: bool = True,
        num_workers: int = 1,
    ) -> None:
        super().__init__()
        at_least_one("batch_size", batch_size, default=64)
        at_least_one("num_workers", num_workers, default=1)
        if layers is not None and not layers:
            raise InputError(
                "Expected `layers` to contain at least one layer, but it is empty. Omit it to use all layers."
            )
        self.store_path, self.recipe, self.grader, self.signal = store, recipe, grader, signal
        self.target, self.scope = target, TARGETS[target]
        self.feature_spec = FeatureSpec(
            self.scope, signal, positions, layers, join, pooling, weights, prefixes, in_memory, num_workers
        )
        #: Signals from `extract ask` that training needs.
        self.needs = {"text_embedding"} if target == "seu" else set()
        self.fractions = (1 - val_fraction - test_fraction, val_fraction, test_fraction)
        self.split_seed, self.batch_size, self.broader = split_seed, batch_size, broader or []
        self._batches: dict[str, Batch] = {}

    def prepare_data(self) -> None:
        """Create or complete the store from the recipe.

        Raises:
            InputError: If the store cannot be made. For a new store, also if a split fraction is invalid or if there
                would be fewer than 10 validation questions.
        """
        for path in self.broader:
            Store.open(path)
        if self.recipe is None:
            Store.open(self.store_path)
            return
        if not Path(self.store_path, "identity.json").is_file():  # sampling can take hours, so check the split first
            questions, _ = self.recipe.load()
            ids, groups = [one.id for one in questions], [one.group for one in questions]
            n_validation = split_questions(ids, groups, self.fractions, self.split_seed).count(1)
            check_validation(n_validation, f"{len(questions)} questions", self.fractions[1])
        from extract.commands import ask, make_store
        from extract.running.worker import Worker

        store = make_store(self.store_path, self.recipe, self.grader, self.feature_spec.signals, self.scope)
        missing = sorted(name for name in self.needs if store.signals.missing(name, "sample"))
        if missing:
            ask(self.store_path, missing, device=self.recipe.device, worker=Worker())

    def setup(self, stage: str | None = None) -> None:
        """Read the features and split the questions.

        Raises:
            InputError: If `load` fails, if there are fewer than 10 validation questions, if all test answers have the
                same grade, or if all answers outside the test split have the same grade.
        """
        if self._batches:
            return
        self.load()
        rows = self.question_rows["train"]
        parts = split_rows(self.table, rows, self.fractions, self.split_seed)
        self.use_split({split: part.tolist() for split, part in zip(SPLITS, parts, strict=True)})
        check_validation(len(self.question_rows["val"]), f"{len(rows)} usable questions", self.fractions[1])
        for splits in (("train", "val"), ("test",)):
            batch = self.batch(*splits)
            right, known = int(batch.right.sum()), int(batch.known.sum())
            if right in (0, known):
                raise InputError(
                    f"Expected right and wrong answers to the {' and '.join(splits)} questions, but all {known} "
                    f"answers are {'right' if right else 'wrong'}. Check them with `python -m extract inspect`, or use "
                    f"more or {'harder' if right else 'easier'} questions."
                )

    def load(self, table: QuestionTable | None = None) -> None:
        """Read the features of all usable rows into one split named `train`.

        `table` defaults to the store's own table.

        Raises:
            InputError: If features or grades are missing, a file is damaged, or no question is usable.
        """
        self.store = Store.open(self.store_path)
        self.table = load_table(self.store, self.grader) if table is None else table
        question_of = self.question_of
        features, self.feature_names, self.pooled = self.feature_spec.read(self.store, len(question_of))
        right, known = (count.float() for count in self._counts())
        enough = (torch.from_numpy(self.table.known) >= 2)[question_of]
        finite = features.isfinite().flatten(1).all(1) if isinstance(features, Tensor) else features.finite()
        usable = (known > 0) & enough
        if self.target == "seu":
            usable &= self._target().isfinite()
        fractions = self.feature_spec.fractions
        places = (usable.repeat(len(fractions)) & finite).nonzero()[:, 0]  # with prefixes, the rows are repeated
        rows, fraction = places % len(usable), torch.tensor(fractions)[places // len(usable)]
        self.n_unusable = len(usable) - len(rows.unique())
        if not len(rows):
            raise InputError(
                f"Expected questions with at least two known grades and finite features, but {self.store_path!r} has "
                "none. Inspect the store with `python -m extract inspect`."
            )
        question, right, known = question_of[rows], right[rows], known[rows]
        self.question_rows, self.split_rows = {"train": question.unique()}, {"train": rows[fraction == 1]}
        target = self._target()[rows]
        self._batches = {"train": Batch(features[places], target, right, known, rows, question, fraction)}

    @property
    def question_of(self) -> Tensor:
        """Index of each row's question in the question table, [row] int64."""
        if self.scope == "question":
            return torch.arange(len(self.table.ids))
        return torch.from_numpy(self.table.answers.question)

    def _counts(self) -> tuple[Tensor, Tensor]:
        """Return the numbers of right answers and of known grades, each [row]."""
        counted = self.table.answers if self.scope == "sample" else self.table
        return torch.from_numpy(counted.right), torch.from_numpy(counted.known)

    def _target(self) -> Tensor:
        """Compute the targets, [row] float32. The threshold for `semantic_entropy` is fitted to the training split."""
        if self.target == "semantic_entropy":
            answers = self.table.answers
            rows_of = answers.rows_by_question(len(self.table.ids))
            clusters = [clusters_of(answers.answer_class[rows].tolist()) for rows in rows_of]
            entropy = torch.tensor(list(map(discrete_entropy, clusters)), dtype=torch.float64)
            self.entropy_threshold = entropy_threshold(entropy[self.question_rows["train"]].numpy())
            return (entropy < self.entropy_threshold).float()
        if self.target == "seu":
            agreement = [1 - seu(embeddings) for embeddings in self.answer_embeddings().numpy()]
            return torch.tensor(agreement).float().clamp(0, 1)  # the cosine can be negative
        right, known = self._counts()
        return right / known

    def batch(self, *splits: str, prefixes: bool = False) -> Batch:
        """Return all rows of one or more splits. If `prefixes` is true, prefixes of answers are included."""
        first, *more = (self._batches[split] for split in splits)
        batch = Batch.cat([first, *more]) if more else first
        return batch if prefixes or not self.feature_spec.prefixes else batch.take(batch.fraction == 1)

    def every(self, prefixes: bool = False) -> Batch:
        """Return the rows of all splits, in table order."""
        every = self.batch(*self._batches, prefixes=prefixes)
        return every.take(every.row.argsort())

    def inner_folds(self, question: Tensor, n_folds: int) -> Tensor:
        """Return each row's fold, [row] int64.

        `question` [row] int64 is the question of each row. All rows of a question are in the same fold. Folds are
        stratified by question group and by whether the question has a right answer.
        """
        questions, place = question.cpu().unique(return_inverse=True)
        rows = questions.tolist()
        strata = [f"{self.table.groups[row]}\0{self.table.right[row] > 0}" for row in rows]
        fold = split_questions([self.table.ids[row] for row in rows], strata, [1 / n_folds] * n_folds, self.split_seed)
        return torch.tensor(fold)[place]

    def use_split(self, questions: Mapping[str, Sequence[int]]) -> None:
        """Replace the splits, for cross-validation. `questions` maps each split to rows of the question table."""
        every = self.every(prefixes=True)
        self.question_rows = {split: torch.tensor(list(rows), dtype=torch.int64) for split, rows in questions.items()}
        every = every._replace(target=self._target()[every.row])
        self._batches = {
            split: every.take(torch.isin(every.question, rows).nonzero()[:, 0])
            for split, rows in self.question_rows.items()
        }
        self.split_rows = {split: self.batch(split).row for split in self._batches}

    def use_grades(self, table: QuestionTable) -> None:
        """Use the grades of another table with the same answers.

        Every loaded row must have at least one known grade in that table.
        """
        self.table = table
        right, known = (count.float() for count in self._counts())
        target = self._target()
        self._batches = {
            split: batch._replace(target=target[batch.row], right=right[batch.row], known=known[batch.row])
            for split, batch in self._batches.items()
        }

    def answer_embeddings(self) -> Tensor:
        """Read the answers' text embeddings, [question, sample, d] float32; NaN for empty and missing answers.

        Raises:
            InputError: If the store has no text embeddings.
        """
        embeddings = self.store.signals.read("text_embedding", "0/answer", "sample").float()
        answers = self.table.answers
        padded = torch.full((len(self.table.ids), int(answers.sample.max()) + 1, embeddings.shape[1]), torch.nan)
        padded[torch.from_numpy(answers.question), torch.from_numpy(answers.sample)] = embeddings
        return padded

    def _loader(self, split: str, shuffle: bool = False, read: bool = False) -> Batches:
        device = self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")
        return Batches(self.batch(split, prefixes=split != "test").to(device), self.batch_size, shuffle, read)

    def train_dataloader(self) -> Batches:
        """Return the shuffled training batches."""
        module = None if self.trainer is None else self.trainer.lightning_module
        return self._loader("train", shuffle=True, read=module is None or module.automatic_optimization)

    def val_dataloader(self) -> Batches:
        """Return the validation batches."""
        return self._loader("val")

    def test_dataloader(self) -> Batches:
        """Return the test batches."""
        return self._loader("test")
