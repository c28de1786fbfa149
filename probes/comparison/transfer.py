"""Transfer: a probe trained on each set or kind of questions, tested on each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor
from tqdm import tqdm

from datamodules import FeatureDataModule
from extract.errors import InputError, nearest
from extract.policy import differences
from probes.card import cell, table
from probes.comparison.folds import VAL_SHARE, fit, folds, split_rows
from probes.comparison.methods import PROBES
from probes.evaluate import Scored, metric_of, usable
from probes.intervals import Interval, bootstrap
from probes.plots import INK, new_figure, styled

#: Questions that a set has to have to be trained on or tested on.
LEAST_QUESTIONS = 20
#: The row of probes that were trained on all other sets.
OTHERS = "all others"


class QuestionSet(NamedTuple):
    """Some questions of one store.

    Attributes:
        name: Name of the set.
        data: The store's data.
        questions: [question] rows of its question table.
    """

    name: str
    data: FeatureDataModule
    questions: Tensor


class Cell(NamedTuple):
    """How a probe that was trained on one set does on another.

    Attributes:
        train: Name of the training set, or `OTHERS`.
        test: Name of the test set.
        n_questions: Questions that were tested.
        auroc: AUROC with its interval.
        brier_skill: Skill over the mean accuracy of the questions that the probe was trained on.
    """

    train: str
    test: str
    n_questions: int
    auroc: Interval | None
    brier_skill: Interval | None


def question_sets(stores: Sequence[str], grader: str | None, probe: str) -> tuple[list[QuestionSet], dict[str, int]]:
    """The sets to go between: the stores, or the groups of the only one; and the sizes of those that are too small.

    Raises:
        InputError: Unknown probe, stores of different models, or less than two sets that are large enough.
    """
    if probe not in PROBES:
        raise InputError(
            f"Expected `probe` to be one of {', '.join(PROBES)}, but got {probe!r}.{nearest(probe, PROBES)}"
        )
    method = PROBES[probe]
    loaded = []
    for store in stores:
        loaded.append(
            FeatureDataModule(
                store, grader=grader, target=method.target, signal=method.signal, positions=list(method.positions)
            )
        )
        loaded[-1].setup()
    for data in loaded[1:]:
        wrong = list(differences(data.store.identity["policy"]["model"], loaded[0].store.identity["policy"]["model"]))
        if wrong:
            raise InputError(
                f"Expected `stores` of one model, but {data.store_path!r} and {stores[0]!r} differ in {'; '.join(wrong)}. A probe reads the states of the model that it was trained on."
            )
    if len(loaded) == 1:
        data, questions = loaded[0], loaded[0].every().question
        groups = sorted({data.table.groups[row] for row in questions.tolist()})
        sets = [
            QuestionSet(group, data, questions[[data.table.groups[row] == group for row in questions.tolist()]])
            for group in groups
        ]
    else:
        sets = [QuestionSet(Path(data.store_path).name, data, data.every().question) for data in loaded]
    large = [one for one in sets if len(one.questions) >= LEAST_QUESTIONS]
    if len(large) < 2:
        raise InputError(
            f"Expected at least two sets of {LEAST_QUESTIONS} questions, but got {', '.join(f'{one.name!r} of {len(one.questions)}' for one in sets)}. Give several --stores, or one whose questions have groups."
        )
    return large, {one.name: len(one.questions) for one in sets if one not in large}


def transfer_cells(
    sets: Sequence[QuestionSet], probe: str, n_folds: int, seed: int, n_resamples: int
) -> Iterator[Cell]:
    """One cell a pair of training and test set. A set is tested by probes of its own out of fold.

    The groups of one store also get a row of probes that were trained on all other groups.
    """
    one_store = len({id(one.data) for one in sets}) == 1
    with tqdm(total=len(sets) * (n_folds + 1 + one_store), desc="transfer", unit=" fits") as progress:
        for own in sets:
            yield _within(own, probe, n_folds, seed, n_resamples)
            progress.update(n_folds)
            trained = _Trained(probe, own.data, own.questions, seed)
            for other in sets:
                if other is not own:
                    yield _cell(own.name, other, trained.scored(other), trained.reference, n_resamples, seed)
            progress.update()
        for own in sets if one_store else ():
            rest = torch.cat([one.questions for one in sets if one is not own]).sort().values
            trained = _Trained(probe, own.data, rest, seed)
            yield _cell(OTHERS, own, trained.scored(own), trained.reference, n_resamples, seed)
            progress.update()


class _Trained:
    """A probe trained, chosen and calibrated on some questions of a store.

    Attributes:
        reference: Mean accuracy of its training split.
    """

    def __init__(self, probe: str, data: FeatureDataModule, questions: Tensor, seed: int) -> None:
        part = split_rows(data.table, questions, [1 - VAL_SHARE, VAL_SHARE], seed)
        every = data.every().question
        rest = every[~torch.isin(every, questions)]
        data.use_split({"train": part[0].tolist(), "val": part[1].tolist(), "test": rest.tolist()})
        self._module = fit(PROBES[probe].make, data, PROBES[probe].epochs, seed)
        self.reference = self._module.train_accuracy

    @torch.no_grad()
    def scored(self, one: QuestionSet) -> Scored:
        """Its confidences in the questions of a set."""
        every = one.data.every()
        batch = every.take(torch.isin(every.question, one.questions).nonzero()[:, 0])
        return Scored(self._module.predict(batch.features).double(), batch.right, batch.known)


def _within(own: QuestionSet, probe: str, n_folds: int, seed: int, n_resamples: int) -> Cell:
    """The cell of a set with itself, out of fold."""
    data, found = own.data, []
    for fold in folds(data.table, own.questions, n_folds, seed):
        trained = _Trained(probe, data, torch.cat([fold.rows["train"], fold.rows["val"]]).sort().values, seed)
        one = trained.scored(QuestionSet(own.name, data, fold.rows["test"]))
        found.append((one, torch.full_like(one.right, fold.number), torch.full_like(one.confidence, trained.reference)))
    scored = Scored(
        torch.cat([one.confidence for one, _, _ in found]),
        torch.cat([one.right for one, _, _ in found]),
        torch.cat([one.known for one, _, _ in found]),
        fold=torch.cat([number for _, number, _ in found]).long(),
    )
    return _cell(own.name, own, scored, torch.cat([reference for _, _, reference in found]), n_resamples, seed)


def _cell(
    train: str, test: QuestionSet, scored: Scored, reference: float | Tensor, n_resamples: int, seed: int
) -> Cell:
    kept = usable(scored)
    one, n = scored.take(kept), int(kept.sum())
    reference = reference[kept] if isinstance(reference, Tensor) else reference
    auroc, skill = (
        bootstrap(metric_of(one, name, reference), n, n_resamples, seed) if n else None
        for name in ("auroc", "brier_skill")
    )
    return Cell(train, test.name, n, auroc, skill)


def transfer_page(record: dict[str, Any]) -> str:
    """The matrix as Markdown."""
    small = "".join(f"\n- `{name}` is left out: {n} questions." for name, n in record["too_small"].items())
    return f"""# Where a probe holds that was trained elsewhere

Probe `{record["probe"]}` of `{record["policy"]["model"]["id"]}`, graded by `{record["grader"]}`. Rows are what it was trained, chosen and calibrated on, columns what it is tested on; the same set by
{record["folds"]} folds. 95 % intervals over the tested questions.

## AUROC

{_matrix(record, "auroc")}

## Brier skill

1 − Brier / Brier of the mean accuracy of the training questions; below 0 where the probe is worse than that constant.

{_matrix(record, "brier_skill")}
{small}

![transfer](plots/transfer.png)

Store identities {", ".join(f"`{one}`" for one in record["identities"])}, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def _names(record: dict[str, Any]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(one["train"] for one in record["cells"])), list(
        dict.fromkeys(one["test"] for one in record["cells"])
    )


def _matrix(record: dict[str, Any], metric: str) -> str:
    of_pair = {(one["train"], one["test"]): one for one in record["cells"]}
    trains, tests = _names(record)
    n = {one["test"]: one["n_questions"] for one in record["cells"]}
    rows = [
        [train, *(cell(of_pair[train, test][metric]) if (train, test) in of_pair else "" for test in tests)]
        for train in trains
    ]
    return table(["trained on", *(f"{test} ({n[test]})" for test in tests)], rows)


@styled
def transfer_picture(record: dict[str, Any]) -> Figure:
    """AUROC of every pair as a heat map, bold where the interval does not hold ½."""
    trains, tests = _names(record)
    figure, axes = new_figure(1.6 + 0.85 * len(tests), 1.2 + 0.5 * len(trains))
    values = torch.full((len(trains), len(tests)), torch.nan)
    for one in record["cells"]:
        if one["auroc"] is not None:
            values[trains.index(one["train"]), tests.index(one["test"])] = one["auroc"]["value"]
    image = axes.imshow(values.numpy(), cmap="RdBu", vmin=0, vmax=1, aspect="auto")
    for one in record["cells"]:
        interval = one["auroc"]
        if interval is not None:
            sure = not interval["low"] <= 0.5 <= interval["high"]
            axes.text(
                tests.index(one["test"]),
                trains.index(one["train"]),
                f"{interval['value']:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if sure else "normal",
                color="white" if abs(interval["value"] - 0.5) > 0.3 else INK,
            )
    axes.set_xticks(range(len(tests)), tests, rotation=40, ha="right", fontsize=8)
    axes.set_yticks(range(len(trains)), trains, fontsize=8)
    axes.set(xlabel="tested on", ylabel="trained on")
    axes.set_title("AUROC (bold: interval without ½)", fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return figure
