"""`FeatureDataModule`: from a store to batches of hidden states and counts of right answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import lightning as L
import torch
from torch import Tensor

from datamodules.splits import SPLITS, split_questions
from datamodules.table import QuestionTable, load_table
from extract.errors import InputError
from extract.recipe import StoreRecipe
from extract.store import Store

#: Fewer questions say too little to choose a layer by.
LEAST_VALIDATION = 10


class Batch(NamedTuple):
    """Some questions: `features` [question, feature, d_model] float32, `right` and `known` [question] float32, `row` [question] int64."""

    features: Tensor
    right: Tensor
    known: Tensor
    row: Tensor


class TensorBatches:
    """Slices of tensors that are in memory already; shuffled anew in every pass where asked for.

    The batches of a pass are of equal size, give or take one: a short last batch would give its questions more weight.

    Args:
        batch: All questions.
        batch_size: Most questions in a batch.
        shuffle: Whether to shuffle, with torch's global generator.
    """

    def __init__(self, batch: Batch, batch_size: int, shuffle: bool = False) -> None:
        self.batch, self.batch_size, self.shuffle = batch, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.batch.row) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        n = len(self.batch.row)
        order = torch.randperm(n) if self.shuffle else torch.arange(n)
        for rows in order.tensor_split(len(self)):
            yield Batch(*(tensor[rows] for tensor in self.batch))


class FeatureDataModule(L.LightningDataModule):
    """Hidden states of a store with the expected accuracy of each question, split by question.

    Args:
        store: Folder of the store.
        recipe: What the store is made from if it is missing, and checked against if it is there; null takes the store
            as it is.
        grader: Whose grades are the target; null takes the only ones there are ("short" for a store to be made).
        signal: Signal that gives the features.
        positions: Named token positions of the signal.
        layers: Layers to use; null takes all.
        val_fraction: Share of the questions for validation.
        test_fraction: Share of the questions for the test.
        split_seed: Seed of the split.
        batch_size: Questions in a batch.
    """

    def __init__(
        self,
        store: str = "stores/facts",
        recipe: StoreRecipe | None = None,
        grader: str | None = None,
        signal: str = "hidden",
        positions: list[str] | None = None,
        layers: list[int] | None = None,
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
        self.store_path, self.recipe, self.grader, self.signal = store, recipe, grader, signal
        self.positions = positions or ["last_prompt"]
        self.layers, self.batch_size = layers, batch_size
        self.fractions = (1 - val_fraction - test_fraction, val_fraction, test_fraction)
        self.split_seed = split_seed
        self._batches: dict[str, Batch] = {}

    def prepare_data(self) -> None:
        """Make the store if it is missing or unfinished; needs the model only then."""
        if self.recipe is None:
            Store.open(self.store_path)
            return
        from extract.commands import make_store

        make_store(self.store_path, self.recipe, self.grader or "short", [self.signal])

    def setup(self, stage: str | None = None) -> None:
        """Read the chosen features and split the questions.

        Raises:
            InputError: Missing features or grades, a damaged file, a feature that is infinite or NaN in part, a
                validation split of fewer than 10 questions, or a split whose answers are all right or all wrong.
        """
        if self._batches:
            return
        self.store = Store.open(self.store_path)
        self.use_table(load_table(self.store, self.grader))

    def use_table(self, table: QuestionTable) -> None:
        """Read the features and split the questions of a table, which may be another than the store's own.

        Raises:
            InputError: As `setup`.
        """
        self.table = table
        self.feature_names = self._feature_names()
        features = torch.stack(
            [self.store.read_signal(self.signal, name) for name in self.feature_names], dim=1
        ).float()
        self.split_rows = self._split(self.table, features)
        for split, rows in self.split_rows.items():
            self._batches[split] = Batch(
                features[rows],
                torch.from_numpy(self.table.right).float()[rows],
                torch.from_numpy(self.table.known).float()[rows],
                rows,
            )
            _check_classes(self._batches[split], split)

    def _feature_names(self) -> list[str]:
        held = self.store.signal_keys(self.signal)
        names = [
            name
            for name in held
            if name.split("/")[1] in self.positions and (self.layers is None or int(name.split("/")[0]) in self.layers)
        ]
        for position in self.positions:
            if not any(name.endswith(f"/{position}") for name in held):
                there = sorted({name.split("/")[1] for name in held})
                raise InputError(
                    f"Expected `positions` to be among {', '.join(there)}, which {self.store_path!r} holds, but got {position!r}. Choose one of them."
                )
        for layer in self.layers or []:
            if not any(name.startswith(f"{layer}/") for name in held):
                raise InputError(
                    f"Expected `layers` to be among those {self.store_path!r} holds (0 to {max(int(name.split('/')[0]) for name in held)}), but got {layer}. Choose one of them."
                )
        if not names:
            raise InputError(
                f"Expected `layers` to be among those that {self.store_path!r} holds of {', '.join(self.positions)}, but got {self.layers}. Leave it out, or give null, for all."
            )
        self._check_shapes(names)
        return names

    def _check_shapes(self, names: list[str]) -> None:
        """Refuse features that are no vectors of one width, which can't stand in one tensor."""
        layout = self.store.layout(self.signal)
        first = list(layout[names[0]].shape)
        for name in names:
            shape = list(layout[name].shape)
            if len(shape) != 1 or shape != first:
                raise InputError(
                    f"Expected the signal {self.signal!r} of {self.store_path!r} to be one vector a question, of the width of {names[0]!r}, which has the shape {first}, but {name!r} has {shape}. Choose other `layers` or `positions`."
                )

    def _split(self, table: QuestionTable, features: Tensor) -> dict[str, Tensor]:
        """Rows of each split. A question with fewer than two known grades or with a missing feature is in none."""
        usable = (torch.from_numpy(table.known) >= 2) & features.isfinite().flatten(1).all(1)
        self.n_unusable = int((~usable).sum())
        rows = usable.nonzero()[:, 0].tolist()
        if not rows:
            raise InputError(
                f"Expected questions with at least two known grades and finite features, but none of the {len(usable)} of {self.store_path!r} has them. Look at the store with `python -m extract inspect`."
            )
        parts = torch.tensor(
            split_questions(
                [table.ids[row] for row in rows], [table.groups[row] for row in rows], self.fractions, self.split_seed
            )
        )
        split_rows = {split: torch.tensor(rows)[parts == part] for part, split in enumerate(SPLITS)}
        if len(split_rows["val"]) < LEAST_VALIDATION:
            raise InputError(
                f"Expected a validation split of at least {LEAST_VALIDATION} questions, which choose the layer and fit the calibrator, but got {len(split_rows['val'])} of {len(rows)} with known grades. Use a store of more questions, or a larger `val_fraction` than {self.fractions[1]:g}."
            )
        return split_rows

    def batch(self, split: str) -> Batch:
        """All questions of a split."""
        return self._batches[split]

    def use_split(self, rows: dict[str, Sequence[int]]) -> None:
        """Replace the split by rows of the table per part, for example the folds of a cross-validation."""
        every = Batch(*(torch.cat(tensors) for tensors in zip(*self._batches.values(), strict=True)))
        place = {int(row): i for i, row in enumerate(every.row)}
        self.split_rows = {split: torch.tensor(list(chosen)) for split, chosen in rows.items()}
        self._batches = {
            split: Batch(*(tensor[[place[int(row)] for row in chosen]] for tensor in every))
            for split, chosen in rows.items()
        }

    def train_dataloader(self) -> TensorBatches:
        """Shuffled training batches."""
        return TensorBatches(self._batches["train"], self.batch_size, shuffle=True)

    def val_dataloader(self) -> TensorBatches:
        """Validation batches."""
        return TensorBatches(self._batches["val"], self.batch_size)

    def test_dataloader(self) -> TensorBatches:
        """Test batches."""
        return TensorBatches(self._batches["test"], self.batch_size)


def _check_classes(batch: Batch, split: str) -> None:
    right, known = int(batch.right.sum()), int(batch.known.sum())
    if right in (0, known):
        kind = "right" if right else "wrong"
        raise InputError(
            f"Expected the {split} split to have right and wrong answers, but all {known} answers of its {len(batch.row)} questions are {kind}. Use more or other questions, or another split_seed."
        )
