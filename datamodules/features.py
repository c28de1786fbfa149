"""`FeatureDataModule`: from a store to batches of features and what they are to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lightning as L
import torch
from torch import Tensor

from datamodules.batches import Batch, TensorBatches
from datamodules.feature_spec import Wanted
from datamodules.semantic import answer_entropies, entropy_threshold, seu
from datamodules.splits import SPLITS, split_questions
from datamodules.table import Asked, QuestionTable, asked_of_answers, load_table
from extract.errors import InputError, nearest
from extract.recipe import StoreRecipe
from extract.store.shards import Scope
from extract.store.store import Store

#: Fewer questions say too little to choose a layer by.
LEAST_VALIDATION = 10

#: What can be predicted, and whether it is a question's or an answer's.
TARGETS: dict[str, Scope] = {
    "capability": "question",
    "semantic_entropy": "question",
    "seu": "question",
    "response": "sample",
}


class FeatureDataModule(L.LightningDataModule):
    """Features of a store's questions or answers with what they are to predict, split by question.

    Args:
        store: Folder of the store.
        recipe: What the store is made from if it is missing, and checked against if it is there; null takes the store
            as it is.
        grader: Whose grades are the target; null takes the only ones there are (for a store to be made, those of the grader
            of the questions' kind).
        target: What a probe learns: `capability`, how often the question is answered rightly; `semantic_entropy`,
            whether the answers to it agree more than those to most training questions; `seu`, the mean cosine of the
            embeddings of two answers to it; `response`, whether one answer is right.
        signal: Signal that gives the features: one of vectors, which are a feature for each layer and position, or a
            token signal, whose numbers are one feature together.
        positions: Named token positions of the signal; null takes `last_prompt`, for `response` `last_answer`, and of a
            token signal all.
        layers: Layers to use; null takes all.
        join: Token signals whose numbers stand behind every feature, each a signal or a signal/position.
        pooling: How the tokens of an answer become numbers, in several ways: the names of `extract.signals.pooling`; `windows_4`,
            means over quarters of the answer; `distribution`, the shape of the curve, of tokens/entropy alone. null takes
            mean, std and max.
        weights: Weights of the tokens when they are pooled: entropy, prob (1 − p_max), or signal/position of an influence.
        val_fraction: Share of the questions for validation.
        test_fraction: Share of the questions for the test.
        split_seed: Seed of the split.
        batch_size: Questions in a batch, or answers for the target `response`.
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
        val_fraction: float = 0.2,
        test_fraction: float = 0.2,
        split_seed: int = 0,
        batch_size: int = 64,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise InputError(f"Expected `batch_size` to be at least 1, but got {batch_size}. 64 is the default.")
        if layers is not None and not layers:
            raise InputError(
                "Expected `layers` to name at least one layer, but it is empty. Leave it out, or give null, for all."
            )
        if target not in TARGETS:
            raise InputError(
                f"Expected `target` to be one of {', '.join(TARGETS)}, but got {target!r}.{nearest(target, TARGETS)}"
            )
        self.store_path, self.recipe, self.grader, self.signal = store, recipe, grader, signal
        self.target, self.scope = target, TARGETS[target]
        self.wanted = Wanted.of(self.scope, signal, positions, layers, join, pooling, weights)
        self.batch_size = batch_size
        #: What `extract ask` has to put into the store; a probe may add to it.
        self.needs = {"text_embedding"} if target == "seu" else set()
        self.fractions = (1 - val_fraction - test_fraction, val_fraction, test_fraction)
        self.split_seed = split_seed
        self._batches: dict[str, Batch] = {}

    def prepare_data(self) -> None:
        """Create or finish the store, with the embeddings that training needs; a model is loaded for what is missing."""
        if self.recipe is None:
            Store.open(self.store_path)
            return
        from extract.asking.run import ask
        from extract.commands import make_store
        from extract.running.worker import Worker

        store = make_store(self.store_path, self.recipe, self.grader, self.wanted.signals, self.scope)
        missing = sorted(name for name in self.needs if store.signals.missing(name, "sample"))
        if missing:
            ask(self.store_path, missing, device=self.recipe.device, worker=Worker())

    def setup(self, stage: str | None = None) -> None:
        """Read the chosen features and split the questions.

        Raises:
            InputError: Missing features or grades, a damaged file, a feature that is infinite or NaN in part, a
                validation split of fewer than 10 questions, or a split whose answers are all right or all wrong.
        """
        if self._batches:
            return
        self.load()
        self.use_split(self._split())
        if len(self.question_rows["val"]) < LEAST_VALIDATION:
            n_questions = sum(map(len, self.question_rows.values()))
            raise InputError(
                f"Expected a validation split of at least {LEAST_VALIDATION} questions, which choose the layer and fit the calibrator, but got {len(self.question_rows['val'])} of {n_questions} with known grades. Use a store of more questions, or a larger `val_fraction` than {self.fractions[1]:g}."
            )
        for split, batch in self._batches.items():
            _check_classes(batch, split)

    def load(self, table: QuestionTable | None = None) -> None:
        """Read the features of all usable rows, as one split called train, for one who splits otherwise.

        Args:
            table: Counts of the questions, where they are others than the store's own.

        Raises:
            InputError: Missing features or grades, a damaged file, or no question that can be used.
        """
        self.store = Store.open(self.store_path)
        self.table = load_table(self.store, self.grader) if table is None else table
        found = self.wanted.found(self.store)
        self.feature_names, self.pooled = found.names, found.pooled
        features = found.read(self.n_rows)
        rows = self._usable(features)
        self.question_rows = {"train": self.question_of(rows).unique()}
        target, right, known = (column[rows] for column in self._label())
        self._batches = {"train": Batch(features[rows], target, right, known, rows, self.question_of(rows))}
        self.split_rows = {"train": rows}

    @property
    def n_rows(self) -> int:
        """Questions or answers of the table."""
        return len(self.table.ids if self.scope == "question" else self.table.answers.question)

    def of_rows(self, of_questions: Tensor) -> Tensor:
        """Values [row] of each row's question, from values [question]."""
        return of_questions[self.question_of(torch.arange(self.n_rows))]

    def question_of(self, rows: Tensor) -> Tensor:
        """Row of the question table for rows of this scope."""
        return torch.from_numpy(self.table.answers.question)[rows] if self.scope == "sample" else rows

    def counts(self) -> tuple[Tensor, Tensor]:
        """Right and known answers of every row."""
        counted = self.table.answers if self.scope == "sample" else self.table
        return torch.from_numpy(counted.right), torch.from_numpy(counted.known)

    def _label(self) -> tuple[Tensor, Tensor, Tensor]:
        """What every row is to predict, and its right and known answers, float32 each."""
        right, known = (count.float() for count in self.counts())
        if self.target == "semantic_entropy":
            entropy = torch.from_numpy(answer_entropies(self.table))
            self.entropy_threshold = entropy_threshold(entropy[self.question_rows["train"]].numpy())
            return (entropy < self.entropy_threshold).float(), right, known
        if self.target == "seu":
            return self._agreement().clamp(0, 1), right, known  # of opposite answers it is below 0
        return right / known, right, known

    def _agreement(self) -> Tensor:
        """1 − SEU of each question's answers, [question] float32; NaN for fewer than two with words."""
        return torch.tensor([1 - seu(one) for one in self.answer_embeddings().numpy()]).float()

    def _usable(self, features: Tensor) -> Tensor:
        """Rows that can be used: of a question with two known grades, with a grade and a target, and no feature missing."""
        known = self.counts()[1]
        whole = (known >= (2 if self.scope == "question" else 1)) & features.isfinite().flatten(1).all(1)
        if self.target == "seu":
            whole &= torch.isfinite(self._agreement())
        enough = torch.from_numpy(self.table.known) >= 2
        rows = (whole & enough[self.question_of(torch.arange(len(whole)))]).nonzero()[:, 0]
        self.n_unusable = len(whole) - len(rows)
        if not len(rows):
            raise InputError(
                f"Expected questions with at least two known grades and finite features, but none of the {len(enough)} of {self.store_path!r} has them. Look at the store with `python -m extract inspect`."
            )
        return rows

    def _split(self) -> dict[str, list[int]]:
        """Rows of the question table in each split."""
        rows = self.question_rows["train"].tolist()
        ids, groups = [self.table.ids[row] for row in rows], [self.table.groups[row] for row in rows]
        parts = split_questions(ids, groups, self.fractions, self.split_seed)
        return {
            split: [row for row, own in zip(rows, parts, strict=True) if own == part]
            for part, split in enumerate(SPLITS)
        }

    def batch(self, split: str) -> Batch:
        """All rows of a split."""
        return self._batches[split]

    def every(self) -> Batch:
        """The rows of all splits, in their order."""
        every = Batch(*(torch.cat(tensors) for tensors in zip(*self._batches.values(), strict=True)))
        return every.take(every.row.argsort())

    def use_split(self, questions: Mapping[str, Sequence[int]]) -> None:
        """Replace the split by rows of the question table per part, for example the folds of a cross-validation."""
        every, self._batches = self.every(), {}
        self.question_rows = {
            split: torch.tensor(list(chosen), dtype=torch.int64) for split, chosen in questions.items()
        }
        every = every._replace(target=self._label()[0][every.row])  # a threshold is that of the new training split
        for split, chosen in self.question_rows.items():
            self._batches[split] = every.take(torch.isin(every.question, chosen).nonzero()[:, 0])
        self.split_rows = {split: batch.row for split, batch in self._batches.items()}

    def answer_embeddings(self) -> Tensor:
        """Text embeddings of every answer, [question, sample, d] float32 by rows of the question table; NaN where there is none.

        Raises:
            InputError: The store does not hold them.
        """
        read = self.store.signals.read("text_embedding", "0/answer", "sample").float()
        answers = self.table.answers
        held = torch.full((len(self.table.ids), int(answers.sample.max()) + 1, read.shape[1]), torch.nan)
        held[torch.from_numpy(answers.question), torch.from_numpy(answers.sample)] = read
        return held

    def asked_of_answers(self, baseline: str) -> Asked:
        """What the model was asked about each answer, [answer]."""
        return asked_of_answers(self.table, self.store.asked.read(baseline, "sample"))

    def _resident(self, split: str) -> Batch:
        """A split where it is used: moved once, not batch by batch."""
        device = self.trainer.strategy.root_device if self.trainer is not None else torch.device("cpu")
        return self._batches[split].to(device)

    def train_dataloader(self) -> TensorBatches:
        """Shuffled training batches."""
        return TensorBatches(self._resident("train"), self.batch_size, shuffle=True)

    def val_dataloader(self) -> TensorBatches:
        """Validation batches."""
        return TensorBatches(self._resident("val"), self.batch_size)

    def test_dataloader(self) -> TensorBatches:
        """Test batches."""
        return TensorBatches(self._resident("test"), self.batch_size)


def _check_classes(batch: Batch, split: str) -> None:
    right, known = int(batch.right.sum()), int(batch.known.sum())
    if right in (0, known):
        kind = "right" if right else "wrong"
        raise InputError(
            f"Expected the {split} split to have right and wrong answers, but all {known} answers to its {len(batch.question.unique())} questions are {kind}. Use more or other questions, or another split_seed."
        )
