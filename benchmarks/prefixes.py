"""Evaluate confidences computed from the first 25, 50, 75 and 100 % of each answer.

The metrics are AUROC and Brier score. Probes trained on prefixes are compared with probes trained only on whole
answers. Separate calibrators for each fraction are compared with a single calibrator. The store, the answers and the
folds are those of `benchmarks.sequence`.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import torch
from torch import Tensor

from benchmarks import sequence
from benchmarks.result import report
from datamodules import FeatureDataModule
from probes.comparison.folds import fit, folds
from probes.fitting.module import ProbeModule
from probes.registry import METHODS
from probes.report.evaluate import Scored, difference, estimate

PROBES = {"attention": ("answer_tokens",), "response": ("mean_answer",)}
#: Variants of a probe: trained only on whole answers, also trained on prefixes, and also calibrated by fraction.
WHOLE, TRAINED, BY_FRACTION = "whole answers", "prefixes", "prefixes, calibrated by fraction"


@torch.no_grad()
def confidences(module: ProbeModule, data: FeatureDataModule) -> dict[str, Tensor]:
    """Return the confidences of test answers and their prefixes, [row] float64, keyed by variant (such as `WHOLE`)."""
    choice, batch = module.choice, data.batch("test", prefixes=True)
    assert choice is not None
    scores = module.head()(module.selected(batch.features, choice.features))
    one = choice.calibrator(scores).double()
    if not choice.prefixes:
        return {WHOLE: one}
    several = one.clone()
    for fraction, calibrator in zip(data.feature_spec.fractions[:-1], choice.prefixes, strict=True):
        rows = batch.fraction == fraction
        several[rows] = calibrator(scores[rows]).double()
    return {TRAINED: one, BY_FRACTION: several}


def out_of_fold(name: str, seed: int) -> dict[str, dict[str, Scored]]:
    """Return out-of-fold confidences with grades, keyed by variant (such as `WHOLE`), then by fraction."""
    method = METHODS[name]
    whole, data = (sequence.data_of(method.signal, PROBES[name], prefixes) for prefixes in (False, True))
    every, fractions = data.every(), data.feature_spec.fractions
    shape = len(fractions), len(data.question_of)
    confidence: dict[str, Tensor] = defaultdict(lambda: torch.full(shape, torch.nan, dtype=torch.float64))
    fold = torch.full(shape[1:], -1)
    for number, rows in enumerate(folds(data.table, every.question.unique(), 5, seed, 10)):
        for part in (whole, data):
            part.use_split({split: questions.tolist() for split, questions in rows.items()})
        test = data.batch("test", prefixes=True)
        for part in (whole, data):
            found = confidences(fit(method.load(), part, method.epochs, seed), data)
            for kind, values in found.items():
                for confidences_of, fraction in zip(confidence[kind], fractions, strict=True):
                    of_fraction = test.fraction == fraction
                    confidences_of[test.row[of_fraction]] = values[of_fraction]
        fold[test.row] = number
    own, grades = every.row, (every.right, every.known, every.question)
    return {
        kind: {
            f"{fraction:.0%}": Scored(row[own], *grades, fold[own])
            for fraction, row in zip(fractions, rows, strict=True)
        }
        for kind, rows in confidence.items()
    }


def main() -> None:
    """Run the prefix benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=480)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sequence.make(options.questions)
    scored = {name: out_of_fold(name, options.seed) for name in PROBES}
    value = {
        f"{name}, {metric}, {kind}": {fraction: estimate(rows, metric) for fraction, rows in of_fraction.items()}
        for name, of_kind in scored.items()
        for kind, of_fraction in of_kind.items()
        for metric in ("auroc", "brier")
    }
    differences = {
        f"{name}, {metric}, {a} − {b}": {
            fraction: difference(rows, scored[name][b][fraction], metric) for fraction, rows in scored[name][a].items()
        }
        for name in PROBES
        for metric, a, b in (("auroc", TRAINED, WHOLE), ("brier", BY_FRACTION, WHOLE), ("brier", BY_FRACTION, TRAINED))
    }
    rows = scored["attention"][WHOLE]["100%"]
    report(
        "prefixes",
        value,
        "stated",
        bool(rows.confidence.isfinite().all()),
        differences=differences,
        n_questions=rows.n_questions,
        n_answers=len(rows.confidence),
        accuracy=float(rows.right.sum() / rows.known.sum()),
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
