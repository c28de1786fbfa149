"""Compute out-of-fold confidences of all probes and baselines, for questions and for individual answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule, QuestionTable
from datamodules.features import TARGETS
from datamodules.splits import LEAST_VALIDATION
from extract.asking.registry import ASKED, ask_command
from extract.errors import InputError
from extract.store.shards import Scope
from probes.baselines.registry import available, baselines_of, confidence, needed_commands
from probes.comparison.folds import data_of, fit, fold_of_questions, folds
from probes.metrics.intervals import check_resampling
from probes.registry import METHODS, PROBES, ProbeMethod

#: Name of the method that chooses a probe in each fold, based on the fold's validation questions.
BEST = "best_probe"


@dataclass
class OutOfFold:
    """Out-of-fold confidences of all methods.

    Attributes:
        data: Datamodule with all questions of the store.
        questions: Rows of the question table that are tested, [question] int64.
        fold: Test fold of each row of the question table, [question] int64; −1 if the row is not tested.
        confidence: Dict from each method to its confidences [question] for the question table; NaN if missing.
        of_answers: Dict from each method to its confidences [answer] for the answer table; NaN if missing.
        chosen: The probe chosen in each fold, with its options and validation loss.
        masked: Dict from each missing method to the reason why it is missing.
        notes: Warnings from fitting, with the method and the fold.
    """

    data: FeatureDataModule
    questions: Tensor
    fold: Tensor
    confidence: dict[str, Tensor] = field(default_factory=dict)
    of_answers: dict[str, Tensor] = field(default_factory=dict)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    masked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, scope: Scope, name: str, rows: Tensor, values: Tensor) -> None:
        """Save a method's confidences for rows of the question table or the answer table."""
        n_rows = len(self.fold) if scope == "question" else len(self.data.table.answers.question)
        empty = torch.full((n_rows,), torch.nan, dtype=torch.float64)
        self.of_scope(scope).setdefault(name, empty)[rows] = values.double()

    def of_scope(self, scope: Scope) -> dict[str, Tensor]:
        """Return `confidence` if `scope` is "question", and `of_answers` if it is "sample"."""
        return self.confidence if scope == "question" else self.of_answers


class Fit(NamedTuple):
    """Result of fitting a probe in one fold.

    Attributes:
        chosen: Dict with the probe's name, layers, position, penalty (or number of neighbours) and validation loss. Its
            entry `warning` is the warning from fitting, or None.
        losses: Validation losses in nats, [question]; NaN for questions outside the validation split.
    """

    chosen: dict[str, Any]
    losses: Tensor


def is_close(differences: Tensor) -> bool:
    """Return whether the mean of paired differences is at most its standard error. NaNs are ignored.

    >>> is_close(torch.tensor([0.3, -0.1, torch.nan])), is_close(torch.tensor([0.3, 0.2, torch.nan]))
    (True, False)
    """
    known = differences[differences.isfinite()]
    return not float(known.mean()) > float(known.std()) / len(known) ** 0.5


class Comparison:
    """Compute out-of-fold confidences of probes and baselines on one store."""

    def __init__(
        self,
        store: str,
        grader: str | None = None,
        probes: Sequence[str] | None = None,
        n_folds: int = 5,
        seed: int = 0,
    ) -> None:
        self._methods = {name: PROBES[name] for name in (PROBES if probes is None else probes)}
        if not self._methods:
            raise InputError(
                "Expected `probes` to contain at least one probe, but got none. To use all probes, omit the option."
            )
        check_resampling(seed)
        self.store, self.grader, self.n_folds, self.seed = store, grader, n_folds, seed
        self._data: dict[tuple[Any, ...], FeatureDataModule] = {}
        self.data = self._data_of(METHODS["logistic"])
        self._begin()

    def use_table(self, table: QuestionTable) -> None:
        """Use the grades in `table`, which must have the same questions and answers. Earlier results are discarded."""
        for data in self._data.values():
            data.load(table)
        self._begin()

    def _begin(self) -> None:
        """Split the questions into folds, and create an empty result."""
        questions = self.data.every().question
        self.folds = list(folds(self.data.table, questions, self.n_folds, self.seed, LEAST_VALIDATION))
        fold = fold_of_questions((rows["test"] for rows in self.folds), len(self.data.table.ids))
        self.out = OutOfFold(self.data, questions, fold)

    def _data_of(self, method: ProbeMethod) -> FeatureDataModule:
        """Return the datamodule for a probe. Probes with the same target and features share a datamodule."""
        key = method.target, method.signal, method.positions, method.join
        if key not in self._data:
            data = data_of(method, self.store, self.grader)
            data.load(self.data.table if self._data else None)
            self._data[key] = data
        return self._data[key]

    def run(self) -> OutOfFold:
        """Fit every method in every fold and apply it to the test questions.

        Raises:
            InputError: If no probe can be fitted.
        """
        methods = self._methods | {name: method for name, method in METHODS.items() if not method.compared}
        methods = {name: method for name, method in methods.items() if not self._is_missing(name, method)}
        baselines: list[tuple[Scope, str, str]] = [("question", name, name) for name in baselines_of("question")]
        # some question-level and answer-level baselines have the same name
        baselines += [("sample", name, f"{name} (of an answer)") for name in baselines_of("sample")]
        for _, name, label in baselines:
            if not available(name, self.data):
                self.out.masked[label] = f"inputs are missing from the store. Run `{needed_commands(name)}`."
        fits: list[dict[str, Fit]] = [{} for _ in self.folds]
        with tqdm(total=self.n_folds * len(methods), desc="compare", unit=" fits") as progress:
            for number, rows in enumerate(self.folds):
                for name, method in methods.items():
                    progress.set_postfix_str(name)
                    if name not in self.out.masked:
                        try:
                            fits[number][name] = self._fit(name, method, number, rows)
                        except InputError as error:
                            self._mask(TARGETS[method.target], name, name, error)
                    progress.update()
        for scope, name, label in tqdm(baselines, desc="compare", unit=" baselines"):
            if label not in self.out.masked:
                try:
                    self._apply_baseline(scope, name)
                except InputError as error:
                    self._mask(scope, name, label, error)
        candidates = [name for name in self._methods if name not in self.out.masked]
        if not candidates:
            reasons = " ".join(f"{name}: {self.out.masked[name]}" for name in self._methods)
            raise InputError(f"Expected to fit at least one probe on {self.store!r}, but all probes failed. {reasons}")
        for number, rows in enumerate(self.folds):
            self._choose({name: fits[number][name] for name in candidates}, number, rows)
        return self.out

    def _is_missing(self, name: str, method: ProbeMethod) -> bool:
        """Return whether the store lacks a signal that a probe needs. If so, add the reason to `masked`."""
        signals, of_target = self.data.store.signals, FeatureDataModule(target=method.target).needs
        needs: list[tuple[str, Scope]] = [(name, TARGETS[method.target]) for name in (method.signal, *method.join)]
        needs += [(signal, "sample") for signal in of_target.union(method.load().needs)]
        missing = [
            ask_command(signal)
            if signal in ASKED
            else f"python -m extract read --store STORE --signals '[{signal}]' --scope {scope}"
            for signal, scope in needs
            if signals.missing(signal, scope)
        ]
        if missing:
            self.out.masked[name] = f"inputs are missing from the store. Run `{'; '.join(missing)}`."
        return bool(missing)

    def _mask(self, scope: Scope, name: str, label: str, error: InputError) -> None:
        """Remove a method that failed in a fold, and record the reason."""
        self.out.masked[label] = str(error)
        self.out.of_scope(scope).pop(name, None)

    def _fit(self, name: str, method: ProbeMethod, fold: int, rows: dict[str, Tensor]) -> Fit:
        """Fit a probe for one fold and store its confidences on the test questions."""
        data = self._data_of(method)
        data.use_split({split: questions.tolist() for split, questions in rows.items()})
        module = fit(method.load(), data, method.epochs, self.seed)
        if module.warning is not None:
            self.out.notes.append(f"`{name}`, fold {fold}: {module.warning}")
        test, choice = data.batch("test"), module.choice
        assert choice is not None
        self.out.add(data.scope, name, test.row, module.predict(test.features))
        losses = torch.full((len(data.question_of),), torch.nan, dtype=torch.float64)
        losses[module.val_rows] = module.val_losses
        losses[~torch.isin(data.question_of, rows["val"])] = torch.nan  # cross-fitting also scores train rows
        chosen = {"probe": name, "layers": choice.layers, "position": choice.position, module.option: choice.value}
        return Fit({**chosen, "val_loss": float(losses.nanmean()), "warning": module.warning}, losses)

    def _choose(self, fits: Mapping[str, Fit], fold: int, rows: dict[str, Tensor]) -> None:
        """Choose the first probe whose validation loss is at most one standard error above the lowest loss.

        The standard error is that of the mean difference, over questions, between the probe's losses and those of the
        probe with the lowest mean loss.
        """
        lowest = min((fit.losses for fit in fits.values()), key=lambda losses: float(losses.nanmean()))
        chosen = next(fit.chosen for fit in fits.values() if is_close(fit.losses - lowest))
        self.out.add("question", BEST, rows["test"], self.out.confidence[chosen["probe"]][rows["test"]])
        self.out.chosen.append({"fold": fold, **chosen})

    def _apply_baseline(self, scope: Scope, name: str) -> None:
        """Compute a baseline's confidences on the test rows of all folds, and store them."""
        confidences = confidence(name, self.data, scope)
        question = torch.from_numpy(self.data.table.answers.question)
        for rows in self.folds:
            if scope == "sample":
                rows = {split: torch.isin(question, chosen).nonzero()[:, 0] for split, chosen in rows.items()}
            self.out.add(scope, name, rows["test"], confidences(rows)[rows["test"]])
