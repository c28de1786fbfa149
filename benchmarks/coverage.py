"""Measure how often the report's 95 % intervals contain the true value, on simulated questions.

A regime is a distribution of questions. Each question has a true accuracy p, a confidence f and a less informative
confidence g. Of its k answers, c ~ Binomial(k, p) are right. Each simulation draws a test split of N questions and a
training split. The accuracy r measured on the training split is the reference for the Brier skill. The true values are
computed from `TRUTH_SIZE` questions with known p:

- auroc: P(f > f′) + ½ P(f = f′), for a right answer (f) and a wrong answer to another question (f′).
- brier: E (f − p)².
- brier_skill: 1 − E (f − p)² / E (r − p)², given r.
- auroc_difference, brier_difference: the value for f minus the value for g.
- auroc_hard, spearman, e_aurc, prr, prr_50: computed against p̂ = c/k, as in the report.
- ece_width: the calibration error of f against p, in the same ten bins as in the report.
- rmsce: the mean squared calibration error (no square root is taken), in ten bins of equal mass.
- aurc: the error rate on the m questions with the highest f, averaged over all m.
- auprc, recall_at_fpr_1, recall_at_fpr_5: average precision and recall of f as a detector of wrong answers, computed
  against p.

Only the first five metrics have a target coverage.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from benchmarks.result import report
from probes.metrics.functional import (
    capability_auroc,
    squared_calibration_error,
)
from probes.metrics.intervals import bootstrap
from probes.report.evaluate import CAPABILITY, Scored, compare, metric_of

BARRED = ("auroc", "brier", "brier_skill", "auroc_difference", "brier_difference")
OF_MEASURED = ("auroc_hard", "spearman", "e_aurc", "prr", "prr_50")
OF_TRUE = ("aurc", "auprc", "recall_at_fpr_1", "recall_at_fpr_5", "ece_width")
BESIDE = (*OF_MEASURED, *OF_TRUE, "rmsce")
TRUTH_SIZE = 1_000_000
TRAIN_SIZE = 300


class Questions(NamedTuple):
    """True accuracy p, confidence f and less informative confidence g, each [question] float64."""

    accuracy: Tensor
    confidence: Tensor
    weaker: Tensor


def chain(weaker: np.ndarray, kept: tuple[float, float], rng: Generator) -> Questions:
    """Draw confidences f ~ Beta with mean g, then accuracies p ~ Beta with mean f.

    Both f and g are calibrated, and f is more informative.

    Args:
        weaker: Confidences g, [question].
        kept: Concentrations a + b of the Beta distributions of f and p. Smaller values make f and p vary more.
        rng: Random number generator.
    """
    first, second = kept
    confidence = rng.beta(first * weaker, first * (1 - weaker)).clip(1e-9, 1 - 1e-9)
    accuracy = rng.beta(second * confidence, second * (1 - confidence))
    return Questions(*(torch.from_numpy(values) for values in (accuracy, confidence, weaker)))


def hard(n: int, rng: Generator) -> Questions:
    """Draw questions with accuracies mostly near 0 or 1 (mean 0.3), and calibrated confidences (Brier skill 0.45)."""
    return chain(rng.beta(2.4, 5.6, n), (4, 1), rng)


def overconfident(n: int, rng: Generator) -> Questions:
    """Draw questions as in `hard`, but transform the log-odds x of each confidence to 2x + 0.7 (Brier skill 0.36)."""
    questions = hard(n, rng)
    return questions._replace(confidence=(2 * questions.confidence.logit() + 0.7).sigmoid())


def easy(n: int, rng: Generator) -> Questions:
    """Draw questions with a mean accuracy of 0.75 (Brier skill 0.55).

    The confidences f are multiples of 0.1. The confidences g take only four different values.
    """
    questions = chain(rng.choice([0.55, 0.7, 0.8, 0.95], n), (6, 3), rng)
    return questions._replace(confidence=(questions.confidence * 10).round() / 10)


Regime = Callable[[int, Generator], Questions]
REGIMES: dict[str, Regime] = {"hard": hard, "overconfident": overconfident, "easy": easy}


class Truth:
    """True values of all metrics for a distribution of questions with k answers each."""

    def __init__(self, regime: Regime, k: int, rng: Generator) -> None:
        p, f, g = regime(TRUTH_SIZE, rng)
        right, known, one = torch.from_numpy(rng.binomial(k, p)), torch.full_like(p, k), torch.ones_like(p)
        auroc, weaker_auroc = (float(capability_auroc(score, p, one)) for score in (f, g))
        brier, weaker_brier = (float((score - p).square().mean()) for score in (f, g))
        self.mean, self.square, self.brier = float(p.mean()), float(p.square().mean()), brier
        self.fixed = {
            "auroc": auroc,
            "brier": brier,
            "auroc_difference": auroc - weaker_auroc,
            "brier_difference": brier - weaker_brier,
            **{name: float(CAPABILITY[name](f, right, known)) for name in OF_MEASURED},
            **{name: float(CAPABILITY[name](f, p, one)) for name in OF_TRUE},
            "rmsce": round(float(squared_calibration_error(f, p, one)), 4),  # before the root; 0 if f is calibrated
        }

    def values(self, reference: float) -> dict[str, float]:
        """Return the true values of the metrics. The Brier skill is relative to the constant confidence `reference`."""
        worst = self.square - 2 * reference * self.mean + reference**2
        return {**self.fixed, "brier_skill": 1 - self.brier / worst}


def intervals(questions: Questions, right: Tensor, k: int, reference: float, seed: int) -> dict[str, Any]:
    """Compute the intervals of all metrics and paired differences. Undefined intervals are left out."""
    known = torch.full_like(right, k)
    first, second = (Scored(score, right, known) for score in (questions.confidence, questions.weaker))
    names = ("auroc", "brier", "brier_skill", *(name for name in BESIDE if name != "rmsce"))
    alone = {name: bootstrap(metric_of(first, name, reference), len(right), seed=seed) for name in names}
    squared = bootstrap(lambda w: squared_calibration_error(first.confidence, right, known, w), len(right), seed=seed)
    if squared is not None:  # clipped at 0, before the root
        alone["rmsce"] = {end: max(0.0, float(value)) for end, value in squared.items()}  # type: ignore[assignment]  # bounds may be null
    pairs = compare("f", "g", first, second, "simulated", seed=seed)
    differences = {f"{row['metric']}_difference": row for row in pairs}
    return {name: interval for name, interval in (alone | differences).items() if interval is not None}


def simulate(regime: Regime, draws: int, n: int, k: int, seed: int) -> dict[str, Counter[str]]:
    """For each metric, count how many of `draws` intervals contain the true value, are too high or are too low."""
    rng = np.random.default_rng(seed)
    truth = Truth(regime, k, rng)
    counts: dict[str, Counter[str]] = {figure: Counter() for figure in (*BARRED, *BESIDE)}
    for draw in range(draws):
        reference = float(rng.binomial(k, regime(TRAIN_SIZE, rng).accuracy).mean() / k)
        questions = regime(n, rng)
        right = torch.from_numpy(rng.binomial(k, questions.accuracy))
        true = truth.values(reference)
        for figure, interval in intervals(questions, right, k, reference, seed=draw).items():
            too_high, too_low = interval["low"] > true[figure], interval["high"] < true[figure]
            counts[figure]["too_high" if too_high else "too_low" if too_low else "held"] += 1
    return counts


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="number of simulated test splits per regime")
    parser.add_argument("--questions", type=int, default=150, help="number of questions per test split")
    parser.add_argument("--k", type=int, default=10, help="number of answers per question")
    options = parser.parse_args()
    counts = {
        name: simulate(regime, options.draws, options.questions, options.k, seed)
        for seed, (name, regime) in enumerate(REGIMES.items())
    }
    coverage = {
        name: {figure: round(count["held"] / count.total(), 4) for figure, count in figures.items()}
        for name, figures in counts.items()
    }
    value = {name: {figure: shares[figure] for figure in BARRED} for name, shares in coverage.items()}
    report(
        "coverage",
        value,
        "every one within 0.93-0.97",
        all(0.93 <= share <= 0.97 for shares in value.values() for share in shares.values()),
        without_bar={name: {figure: shares[figure] for figure in BESIDE} for name, shares in coverage.items()},
        counts=counts,
        **vars(options),
    )


if __name__ == "__main__":
    main()
