"""Confidences of every method, out of fold: for questions, and answers, that it was neither fitted nor chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule, QuestionTable
from datamodules.features import LEAST_VALIDATION
from extract.errors import InputError
from extract.store.shards import Scope
from probes.baselines.registry import ANSWER_BASELINES, BASELINES, answer_confidence, available, confidence
from probes.comparison.folds import Fold, fit, folds, validation_loss
from probes.fitting.options import check_seed
from probes.registry import METHODS, PROBES, ProbeMethod

#: What validation chose in every fold.
BEST = "best_probe"
#: The probe that reads an answer with its question.
ANSWER_PROBE = "response"
#: A baseline that is fitted like a probe, on what the question says instead of what the model makes of it.
TEXT_EMBEDDING = "text_embedding"


@dataclass
class OutOfFold:
    """Confidences of every method for questions, and for answers, that it was neither fitted nor chosen on.

    Attributes:
        data: The data, with all questions.
        questions: [question] rows of the question table that were tested.
        fold: [question] over the table, number of the fold that tested it; −1 for none.
        confidence: [question] over the table by method, float64; NaN where there is none.
        of_answers: [answer] over the answer table by method.
        chosen: For every fold, the probe that validation chose, and its layer, position and penalty.
        masked: Why a method is missing, by name.
        notes: What a fit said of itself, by method and fold.
    """

    data: FeatureDataModule
    questions: Tensor
    fold: Tensor
    confidence: dict[str, Tensor] = field(default_factory=dict)
    of_answers: dict[str, Tensor] = field(default_factory=dict)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    masked: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def keep(self, of_questions: bool, name: str, rows: Tensor, values: Tensor) -> None:
        """Note confidences for rows of the table."""
        kept, n_rows = (
            (self.confidence, len(self.data.table.ids))
            if of_questions
            else (self.of_answers, len(self.data.table.answers.question))
        )
        kept.setdefault(name, torch.full((n_rows,), torch.nan, dtype=torch.float64))[rows] = values.double()


class Comparison:
    """Out-of-fold confidences of probes and baselines on one store.

    Args:
        store: Folder of the store.
        grader: Whose grades; null takes the only ones there are.
        probes: Names of probes to compare; null takes all.
        n_folds: Number of folds.
        seed: Seed of the folds and of training.
    """

    def __init__(
        self,
        store: str,
        grader: str | None = None,
        probes: Sequence[str] | None = None,
        n_folds: int = 5,
        seed: int = 0,
    ) -> None:
        wanted = list(PROBES) if probes is None else list(probes)
        if not wanted:
            raise InputError("Expected `probes` to name at least one probe, but it is empty. Leave it out for all.")
        check_seed(seed)
        for name in wanted:
            _ = PROBES[name]  # refuses an unknown name
        self.store, self.grader, self.n_folds, self.seed, self._wanted = store, grader, n_folds, seed, wanted
        self._data: dict[tuple[Any, ...], FeatureDataModule] = {}
        self.data = self._data_of(PROBES["logistic"])
        self._begin()

    def use_table(self, table: QuestionTable) -> None:
        """Compare on other grades of the same questions and answers, for a simulation."""
        for data in self._data.values():
            data.load(table)
        self._begin()

    def _begin(self) -> None:
        """Make the folds, and see what the store has all of."""
        questions = self.data.every().question
        self.out = OutOfFold(self.data, questions, torch.full((len(self.data.table.ids),), -1))
        self._folds = list(folds(self.data.table, questions, self.n_folds, self.seed, LEAST_VALIDATION))
        for fold in self._folds:
            self.out.fold[fold.rows["test"]] = fold.number
        self.probes = {name: PROBES[name] for name in self._wanted if self._is_there(name, PROBES[name])}
        self.baselines = [
            name for name in BASELINES if self._holds(name, available(name, self.data), BASELINES[name].needs)
        ]
        self.answer_baselines = [
            name
            for name, one in ANSWER_BASELINES.items()
            if self._holds(f"{name} (of an answer)", available(name, self.data, ANSWER_BASELINES), one.needs)
        ]

    def _data_of(self, method: ProbeMethod) -> FeatureDataModule:
        """The datamodule of what a probe is taught and reads; one for all probes that share it."""
        key = method.target, method.signal, method.positions
        if key not in self._data:
            data = FeatureDataModule(
                self.store,
                grader=self.grader,
                target=method.target,
                signal=method.signal,
                positions=list(method.positions),
            )
            data.load()
            self._data[key] = data
        return self._data[key]

    def _is_there(self, name: str, method: ProbeMethod) -> bool:
        scope: Scope = "sample" if method.target == "response" else "question"
        wanted: list[tuple[str | None, Scope]] = [(method.signal, scope), (method.needs, "sample")]
        missing = [
            f"the signal {signal} at {what} scope"
            for signal, what in wanted
            if signal is not None
            and (signal not in self.data.store.signals.names() or self.data.store.signals.missing(signal, what))
        ]
        return self._holds(name, not missing, " and ".join(missing))

    def _holds(self, name: str, there: bool, needs: str | None) -> bool:
        if not there:
            self.out.masked[name] = f"the store lacks what it needs: {needs}"
        return there

    def run(self) -> OutOfFold:
        """Fit and apply every method in every fold."""
        of_answers = self._is_there(ANSWER_PROBE, METHODS[ANSWER_PROBE])
        embeds = self._is_there(TEXT_EMBEDDING, METHODS[TEXT_EMBEDDING])
        fitted = {**self.probes, **({TEXT_EMBEDDING: METHODS[TEXT_EMBEDDING]} if embeds else {})}
        with tqdm(total=self.n_folds * (len(fitted) + of_answers), desc="compare", unit=" fits") as progress:
            for fold in self._folds:
                losses: dict[str, tuple[float, dict[str, Any]]] = {}
                for name, method in fitted.items():
                    progress.set_postfix_str(name)
                    if name not in self.out.masked:
                        try:
                            losses[name] = self._fit(name, method, fold)
                        except InputError as error:
                            self._mask(name, error)
                    progress.update()
                self._choose({name: loss for name, loss in losses.items() if name in self.probes}, fold)
                self._fit_baselines(fold)
                if of_answers:
                    self._fit_answers(fold)
                    progress.update()
        return self.out

    def _mask(self, name: str, error: InputError) -> None:
        """Take a method out of the comparison for what it says in one of the folds."""
        self.out.masked[name] = str(error)
        self.out.confidence.pop(name, None)
        self.out.of_answers.pop(name, None)

    def _fit(self, name: str, method: ProbeMethod, fold: Fold) -> tuple[float, dict[str, Any]]:
        """Fit a probe in a fold and keep what it says of the fold's test questions; its validation loss and what it chose."""
        data = self._data_of(method)
        data.use_split({split: rows.tolist() for split, rows in fold.rows.items()})
        module = fit(method.load(), data, method.epochs, self.seed)
        if module.warning is not None:
            self.out.notes.append(f"`{name}`, fold {fold.number}: {module.warning}")
        test, val, choice = data.batch("test"), data.batch("val"), module.choice
        assert choice is not None
        with torch.no_grad():
            self.out.keep(True, name, test.row, module.predict(test.features))
            loss = validation_loss(module.predict(val.features), val.right, val.known)
        chosen = {"probe": name, "layer": choice.layer, "position": choice.position, module.option: choice.value}
        return loss, {**chosen, "val_loss": loss, "warning": module.warning}

    def _choose(self, losses: dict[str, tuple[float, dict[str, Any]]], fold: Fold) -> None:
        """Of the fitted probes the one with the least validation loss.

        Raises:
            InputError: None could be fitted.
        """
        if not losses:
            why = "; ".join(f"{name}: {self.out.masked[name]}" for name in self._wanted if name in self.out.masked)
            raise InputError(f"Expected a probe that can be fitted on {self.store!r}, but there is none. {why}")
        sound = {name: loss for name, loss in losses.items() if not loss[1]["warning"]} or losses
        name, test = min(sound, key=lambda one: sound[one][0]), fold.rows["test"]
        self.out.keep(True, BEST, test, self.out.confidence[name][test])
        self.out.chosen.append({"fold": fold.number, **losses[name][1]})

    def _fit_baselines(self, fold: Fold) -> None:
        """Confidences of the baselines, in questions and in answers."""
        question = torch.from_numpy(self.data.table.answers.question)
        answers = {split: torch.isin(question, chosen).nonzero()[:, 0] for split, chosen in fold.rows.items()}
        for names, of_questions, rows in ((self.baselines, True, fold.rows), (self.answer_baselines, False, answers)):
            for name in names:
                label = name if of_questions else f"{name} (of an answer)"
                if label in self.out.masked:
                    continue
                give = confidence if of_questions else answer_confidence
                try:
                    self.out.keep(of_questions, name, rows["test"], give(name, self.data, rows)[rows["test"]])
                except InputError as error:
                    self.out.masked[label] = str(error)
                    (self.out.confidence if of_questions else self.out.of_answers).pop(name, None)

    def _fit_answers(self, fold: Fold) -> None:
        """Confidences of a probe that reads answers."""
        if ANSWER_PROBE in self.out.masked:
            return
        try:
            method = METHODS[ANSWER_PROBE]
            data = self._data_of(method)
            data.use_split({split: chosen.tolist() for split, chosen in fold.rows.items()})
            module = fit(method.load(), data, method.epochs, self.seed)
        except InputError as error:
            self._mask(ANSWER_PROBE, error)
            return
        batch = data.batch("test")
        with torch.no_grad():
            self.out.keep(False, ANSWER_PROBE, batch.row, module.predict(batch.features))
