"""How often the report's 95 % intervals hold the true value, on simulated questions.

A regime is a distribution of questions: each has a true accuracy p, a confidence f and a weaker confidence g, and k
answers of which c ~ Binomial(k, p) are right. A test split of N questions is drawn anew in every simulation, and so is a
training split that only gives the skill its reference r. The truth is what the figures estimate about the distribution
that the questions come from, by `TRUTH_SIZE` questions whose p is known exactly:

- auroc: of two questions, a right answer to one and a wrong answer to the other: P(f of the right one is higher) + ½ P(equal).
- brier: E (f − p)².
- brier_skill: 1 − E (f − p)² / E (r − p)² for the r that was drawn.
- auroc_difference, brier_difference: of f less that of g.
- auroc_hard, spearman: against p̂ = c/k with this k, as the report has them.
- ece_width: the calibration error of f against p, in the same ten bins; rmsce: its squared form in ten bins of equal mass.
- aurc: the mean share of wrong answers among the most confident questions.

The last five have no bar: the ECE is known to be too large on few questions.
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
    aurc,
    capability_auroc,
    expected_calibration_error,
    hard_auroc,
    spearman,
    squared_calibration_error,
)
from probes.metrics.intervals import bootstrap
from probes.report.evaluate import Scored, compare, metric_of

BARRED = ("auroc", "brier", "brier_skill", "auroc_difference", "brier_difference")
BESIDE = ("auroc_hard", "spearman", "ece_width", "rmsce", "aurc")
TRUTH_SIZE = 1_000_000
TRAIN_SIZE = 300


class Questions(NamedTuple):
    """True accuracy p, confidence f and weaker confidence g, each [question] float64."""

    accuracy: Tensor
    confidence: Tensor
    weaker: Tensor


def chain(weaker: np.ndarray, kept: tuple[float, float], rng: Generator) -> Questions:
    """From g, f ~ Beta with mean g and then p ~ Beta with mean f: both confidences are calibrated, f knows more.

    Args:
        weaker: [question] g.
        kept: a + b of the two Beta distributions; the smaller, the further from its mean.
        rng: Where the numbers come from.
    """
    first, second = kept
    confidence = rng.beta(first * weaker, first * (1 - weaker)).clip(1e-9, 1 - 1e-9)
    accuracy = rng.beta(second * confidence, second * (1 - confidence))
    return Questions(*(torch.from_numpy(values) for values in (accuracy, confidence, weaker)))


def hard(n: int, rng: Generator) -> Questions:
    """Mean accuracy 0.3, p mostly near 0 or 1, f calibrated (skill 0.45)."""
    return chain(rng.beta(2.4, 5.6, n), (4, 1), rng)


def overconfident(n: int, rng: Generator) -> Questions:
    """The hard questions with logits of f doubled and raised by 0.7 (skill 0.36)."""
    questions = hard(n, rng)
    return questions._replace(confidence=(2 * questions.confidence.logit() + 0.7).sigmoid())


def easy(n: int, rng: Generator) -> Questions:
    """Mean accuracy 0.75, f in tenths, 0 and 1 among them, g the base rate of one of four groups (skill 0.55)."""
    questions = chain(rng.choice([0.55, 0.7, 0.8, 0.95], n), (6, 3), rng)
    return questions._replace(confidence=(questions.confidence * 10).round() / 10)


#: Draws that many questions.
Regime = Callable[[int, Generator], Questions]
REGIMES: dict[str, Regime] = {"hard": hard, "overconfident": overconfident, "easy": easy}


class Truth:
    """The true value of every figure in a regime.

    Args:
        regime: Draws questions.
        k: Answers a question.
        rng: Where the numbers come from.
    """

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
            "auroc_hard": float(hard_auroc(f, right, known)),
            "spearman": float(spearman(f, right, known)),
            "ece_width": float(expected_calibration_error(f, p, one)),
            "rmsce": round(float(squared_calibration_error(f, p, one)), 4),  # before the root; 0 where f is calibrated
            "aurc": float(aurc(f, p, one)),
        }

    def values(self, reference: float) -> dict[str, float]:
        """The true values, given the constant that the skill compares with."""
        worst = self.square - 2 * reference * self.mean + reference**2
        return {**self.fixed, "brier_skill": 1 - self.brier / worst}


def intervals(questions: Questions, right: Tensor, k: int, reference: float, seed: int) -> dict[str, Any]:
    """The report's intervals for f, and for its differences from g; without those that there are none of."""
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
    """Count where the intervals lie.

    Args:
        regime: Draws questions.
        draws: Test splits.
        n: Questions of a test split.
        k: Answers a question.
        seed: Seed of the questions and answers; the resamples of a draw are seeded by its number.

    Returns:
        How many intervals of each figure hold the truth, lie above it (too_high) and below it (too_low).
    """
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
    """Print the coverage of every figure in every regime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000, help="simulated test splits a regime")
    parser.add_argument("--questions", type=int, default=150, help="questions of a test split")
    parser.add_argument("--k", type=int, default=10, help="answers a question")
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
