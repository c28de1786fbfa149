"""Measure the risk and the coverage of the thresholds from `applications decide` on simulated question sets.

Each question's confidence f and true accuracy p are drawn from a joint distribution. A set contains N questions with k
answers each. An answer is right with probability p. Each method returns a threshold for the target risk. Its true risk
E[1 − p | f ≥ threshold] and its true coverage are computed from `TRUTH_SIZE` other questions. The coverage of the best
threshold on f (oracle) is computed in the same way.

- ours: `certify`, with the betting martingale.
- hoeffding: `certify`, with p-values from Hoeffding's inequality for all questions.
- hoeffding_kept: `certify`, with p-values from Hoeffding's inequality for the answered questions alone (a sharper
  bound).
- MAPIE: `BinaryClassificationController` with a target precision of 1 − risk. It treats answers as independent, with
  labels 0 or 1. It is given either the first answer to each question or all answers.

The benchmark needs the environment that `make peers` creates, unless `--peer_sets 0` is passed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import expit, logit

from applications.decisions import learn_then_test
from applications.decisions.learn_then_test import certify
from benchmarks.parity import python_of, score
from benchmarks.result import report
from extract.errors import InputError

Array = NDArray[np.float64]
LEVEL, RISKS = 0.9, (0.2, 0.3)
TRUTH_SIZE = 1_000_000
#: If the oracle's coverage is at least ATTAINABLE, a threshold must be found in at least the fraction FOUND of sets.
ATTAINABLE, FOUND = 0.3, 0.8
#: Target for the ratio of our coverage to the coverage with Hoeffding's inequality.
RATIO = 1.2


class Sets(NamedTuple):
    """Distribution and size of simulated question sets. `draw` returns confidences and accuracies, each [question]."""

    draw: Callable[[int, Generator], tuple[Array, Array]]
    n_questions: int
    k: int


def calibrated(a: float, b: float, kept: float) -> Callable[[int, Generator], tuple[Array, Array]]:
    """Return a function that draws f ~ Beta(a, b), and p from a beta distribution with mean f.

    A smaller `kept` makes p vary more.
    """

    def draw(n: int, rng: Generator) -> tuple[Array, Array]:
        f = rng.beta(a, b, n).clip(1e-6, 1 - 1e-6)
        return f, rng.beta(kept * f, kept * (1 - f))

    return draw


def overconfident(n: int, rng: Generator) -> tuple[Array, Array]:
    """Draw confidences whose log-odds are 2.5 times the calibrated log-odds, plus ½."""
    f, p = calibrated(0.8, 0.8, 4)(n, rng)
    return expit(2.5 * logit(f) + 0.5), p


def wavy(n: int, rng: Generator) -> tuple[Array, Array]:
    """Draw confidences and accuracies such that the mean accuracy drops at the highest confidences."""
    f = rng.random(n)
    mean = np.where(f > 0.9, 0.72, np.where(f > 0.5, 0.92, 0.25))
    return f, rng.beta(6 * mean, 6 * (1 - mean))


def uninformative(n: int, rng: Generator) -> tuple[Array, Array]:
    """Draw confidences and accuracies independently. The mean accuracy is 0.84."""
    return rng.beta(8.5, 1.5, n), rng.beta(2.1, 0.4, n)


SETS = {
    "uniform": Sets(calibrated(0.8, 0.8, 4), 400, 10),
    "hard": Sets(calibrated(0.6, 1.2, 4), 500, 10),
    "middling": Sets(calibrated(2, 2, 8), 400, 5),
    "separated": Sets(calibrated(0.4, 0.5, 10), 300, 10),
    "overconfident": Sets(overconfident, 400, 5),
    "not monotone": Sets(wavy, 400, 5),
    "easy": Sets(uninformative, 400, 5),
}


def hoeffding_kept(losses: Array, is_kept: NDArray[np.bool_], risk: float, _: Any) -> Array:
    """Compute Hoeffding p-values [threshold] from the answered questions only."""
    n = is_kept.sum(0)
    return np.exp(-2 * n * np.maximum(0, risk - (losses * is_kept).sum(0) / n) ** 2)


class Truth:
    """True risk and coverage at every threshold, for one simulated distribution of questions."""

    def __init__(self, sets: Sets) -> None:
        f, p = sets.draw(TRUTH_SIZE, np.random.default_rng(1))
        order = np.argsort(-f)
        self.confidence, self.risks = -f[order], (1 - p[order]).cumsum() / np.arange(1, TRUTH_SIZE + 1)

    def of(self, threshold: float | None) -> tuple[float, float]:
        """Return the coverage and the risk at a threshold. Both are 0 if the threshold is None."""
        n = 0 if threshold is None else int(np.searchsorted(self.confidence, -threshold, side="right"))
        return (n / TRUTH_SIZE, float(self.risks[n - 1])) if n else (0.0, 0.0)

    def oracle(self, risk: float) -> float:
        """Return the largest coverage among thresholds whose risk is at most `risk`."""
        return float(np.flatnonzero(np.append(True, self.risks <= risk)).max() / TRUTH_SIZE)


def drawn(sets: Sets, n_sets: int, seed: int) -> list[tuple[Array, NDArray[np.int64]]]:
    """Draw question sets, each with confidences [question] and the correctness of the answers [question, answer]."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(n_sets):
        f, p = sets.draw(sets.n_questions, rng)
        found.append((f, rng.binomial(1, p[:, None], (sets.n_questions, sets.k))))
    return found


def ours(given: list[tuple[Array, NDArray[np.int64]]], risk: float, test: str = "betting") -> list[float | None]:
    """Return the certified threshold of each set."""
    return [certify(f, 1 - right.mean(1), risk, LEVEL, test=test).threshold for f, right in given]


def mapie(given: list[tuple[Array, NDArray[np.int64]]], risk: float) -> dict[str, list[float | None]]:
    """Return each MAPIE procedure's thresholds for each set.

    They are computed once from one answer per question, and once from all answers.
    """
    found = {}
    for name, k in (("one answer", 1), ("all answers", None)):
        sets = [
            {"confidence": f.repeat(right[:, :k].shape[1]).tolist(), "right": right[:, :k].ravel().tolist()}
            for f, right in given
        ]
        values = score("mapie", {"sets": sets, "risk": risk, "level": LEVEL})["values"]
        found |= {f"MAPIE, {procedure}, {name}": thresholds for procedure, thresholds in values.items()}
    return found


def figures(truth: Truth, thresholds: list[float | None], risk: float) -> dict[str, Any]:
    """Return the violation rate, its standard error, the fraction of non-None thresholds, and the mean coverage."""
    coverage, risks = np.array([truth.of(threshold) for threshold in thresholds]).T
    violations = float((risks > risk).mean())
    return {
        "violations": violations,
        "standard_error": (violations * (1 - violations) / len(risks)) ** 0.5,
        "found": float((coverage > 0).mean()),
        "coverage": float(coverage.mean()),
    }


def ratios(truth: Truth, a: list[float | None], b: list[float | None]) -> dict[str, float | None]:
    """Return the ratio of the mean coverages of `a` and `b` (`means`), and the mean of their coverage ratios (`sets`).

    For `sets`, the coverage ratios are averaged over the question sets in which both `a` and `b` have a threshold.

    The ratios are None if there is no set in which both `a` and `b` have a threshold. They are also None if the mean
    coverage of `b` exceeds 1 / `RATIO`. In that case, the ratio of the means cannot reach `RATIO`, because coverage is
    at most 1.
    """
    x, y = np.array([[truth.of(one)[0], truth.of(other)[0]] for one, other in zip(a, b, strict=True)]).T
    both = (x > 0) & (y > 0)
    if not both.any() or y.mean() > 1 / RATIO:
        return {"means": None, "sets": None}
    return {"means": float(x.mean() / y.mean()), "sets": float((x[both] / y[both]).mean())}


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=300, help="number of simulated sets per distribution and risk")
    parser.add_argument("--peer_sets", type=int, default=40, help="number of sets to run MAPIE on (0: none)")
    options = parser.parse_args()
    rows, holds = {}, True
    learn_then_test.TESTS["hoeffding_kept"] = hoeffding_kept
    try:
        if options.peer_sets:
            python_of("mapie")
        for seed, (name, sets) in enumerate(SETS.items()):
            truth = Truth(sets)
            given = drawn(sets, options.sets, seed)
            for risk in RISKS:
                found = {test: ours(given, risk, test) for test in ("betting", "hoeffding", "hoeffding_kept")}
                oracle, row = truth.oracle(risk), {test: figures(truth, found[test], risk) for test in found}
                gains = {test: ratios(truth, found["betting"], found[test]) for test in found if test != "betting"}
                if options.peer_sets:
                    peers = mapie(given[: options.peer_sets], risk)
                    row |= {peer: figures(truth, thresholds, risk) for peer, thresholds in peers.items()}
                for method, one in row.items():
                    values = " | ".join(f"{one[key]:.3f}" for key in ("violations", "found", "coverage"))
                    print(f"| {name} | {risk} | {oracle:.3f} | {method} | {values} |", flush=True)
                own = row["betting"]
                holds &= own["violations"] <= 1 - LEVEL + 2 * own["standard_error"]
                holds &= oracle < ATTAINABLE or own["found"] >= FOUND
                holds &= (gains["hoeffding"]["means"] or RATIO) >= RATIO
                rows[f"{name}, risk {risk}"] = {"oracle": oracle, "ratios": gains, **row}
    except InputError as error:
        sys.exit(f"error: {error}")
    own = [row["betting"] for row in rows.values()]
    attainable = [row["betting"]["found"] for row in rows.values() if row["oracle"] >= ATTAINABLE]
    report(
        "decisions",
        {
            "largest fraction of violations": max(one["violations"] for one in own),
            "smallest fraction of sets with a threshold": min(attainable),
            "ratios to Hoeffding's coverage": {
                name: row["ratios"]["hoeffding"]["means"]
                for name, row in rows.items()
                if row["ratios"]["hoeffding"]["means"]
            },
        },
        f"violations ≤ {1 - LEVEL:.1f} + 2 standard errors; a threshold in ≥ {FOUND:.0%}; ratio ≥ {RATIO}",
        holds,
        rows=rows,
        sets=options.sets,
    )


if __name__ == "__main__":
    main()
