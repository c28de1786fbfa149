"""Run the audit on simulated multiple-choice sets (300 questions × 10 answers), with and without a leak.

A leak is one property of the questions that predicts right answers with an AUROC of 0.65. The result for each leak is
the number of simulations in which the audit finds the leak. Without a leak, the figures are the number of false alarms
and the fraction of AUROC intervals that contain ½.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import rankdata

from benchmarks.result import report
from extract import Question
from probes.audit.record import audit_sources, leaks
from probes.audit.sources import SOURCES, question_sources
from probes.metrics.functional import capability_auroc
from probes.report.evaluate import Scored

AUROC = 0.65
K = 10
PHRASE = "all of the above"


def made_questions(n: int, rng: np.random.Generator) -> list[Question]:
    """Return four-option questions made of random words. In about 40 % of them, the last option is a fixed phrase."""
    words = np.array([f"word{number}" for number in range(400)])
    weights = 1 / np.arange(5, 405)

    def text(most: int) -> str:
        return " ".join(rng.choice(words, size=rng.integers(1, most + 1), p=weights / weights.sum()))

    questions = []
    for row in rng.permutation(n).tolist():
        options, key = [text(6) for _ in range(4)], int(rng.integers(4))
        if rng.random() < 0.4:
            options[3] = PHRASE
        questions.append(
            Question(
                id=f"q{row}",
                dataset="made",
                text=text(40),
                references=(ascii_uppercase[key], options[key]),
                kind="choice",
                choices=tuple(options),
                group=f"group {rng.integers(5)}",
                row=row,
            )
        )
    return questions


def rank(values: list[int]) -> NDArray[np.float64]:
    """Return ranks, scaled to (−1, 1)."""
    return (2 * rankdata(values) - 1) / len(values) - 1


#: Property of the questions and its source, for each leak.
LEAKS: dict[str, tuple[str, Callable[[list[Question]], NDArray[np.float64]]]] = {
    "length, rising": ("length", lambda questions: rank([len(one.text) for one in questions])),
    "length, U-shaped": ("length", lambda questions: np.abs(rank([len(one.text) for one in questions]))),
    "position, trend": ("position", lambda questions: rank([one.row or 0 for one in questions])),
    "options, phrase": ("options", lambda questions: np.array([float(PHRASE in one.choices) for one in questions])),
    "options, length": ("options", lambda questions: rank([sum(map(len, one.choices)) for one in questions])),
    "key, letter": ("key", lambda questions: np.array([float(one.references[0] == "A") for one in questions])),
}


def accuracies(value: NDArray[np.float64], strength: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return accuracies [question] with the log-odds `strength` · `value` − ½ + noise. `value` is [question]."""
    return expit(strength * value + 2 * rng.normal(size=len(value)) - 0.5)


def strength_of(value: NDArray[np.float64]) -> float:
    """Return the `strength` at which `value` predicts right answers with an AUROC of 0.65. See `accuracies`."""
    value = np.resize(value, 100_000)

    def excess(strength: float) -> float:
        accuracy = torch.from_numpy(accuracies(value, strength, np.random.default_rng(0)))
        return float(capability_auroc(torch.from_numpy(value), accuracy, torch.ones_like(accuracy))) - AUROC

    return float(brentq(excess, 0, 20, xtol=1e-3))


def leak_features(questions: list[Question]) -> dict[str, NDArray[np.float64]]:
    """Return the question features for each potential leak in `SOURCES`."""
    return {name: values for name, values in question_sources(questions)[0].items() if SOURCES[name].leak}


def audited(
    features: dict[str, NDArray[np.float64]], accuracy: NDArray[np.float64], n_draws: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Draw answers, and audit them."""
    right = torch.from_numpy(rng.binomial(K, accuracy))
    fold = torch.from_numpy(rng.permutation(len(right)) % 5)
    grades = Scored(torch.zeros(len(right)), right, torch.full_like(right, K), fold=fold)
    return audit_sources(features, grades, n_draws, seed=0)[0]


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument(
        "--simulations",
        type=int,
        default=100,
        help="number of simulations per leak (the case without a leak gets twice as many)",
    )
    parser.add_argument(
        "--sets", type=int, default=10, help="number of question sets; the simulations cycle through them"
    )
    parser.add_argument("--draws", type=int, default=499, help="permutations per test")
    options = parser.parse_args()
    torch.set_num_threads(1)  # faster for many small problems
    sets = [made_questions(options.questions, np.random.default_rng([0, number])) for number in range(options.sets)]
    features = [leak_features(one) for one in sets]
    n_found = {}
    for name, (source, property_of) in LEAKS.items():
        values = [property_of(one) for one in sets]
        strengths = [strength_of(value) for value in values]
        hits = []
        for number in range(options.simulations):
            which, rng = number % options.sets, np.random.default_rng([1, number])
            accuracy = accuracies(values[which], strengths[which], rng)
            hits.append(source in leaks(audited(features[which], accuracy, options.draws, rng)))
        n_found[name] = sum(hits)
    n_none, n_false, contain = 2 * options.simulations, 0, []
    for number in range(n_none):
        rng = np.random.default_rng([2, number])
        accuracy = accuracies(np.zeros(options.questions), 0.0, rng)
        sources = audited(features[number % options.sets], accuracy, options.draws, rng)
        n_false += bool(leaks(sources))
        contain += [one["auroc"]["low"] <= 0.5 <= one["auroc"]["high"] for one in sources.values()]
    report(
        "audit",
        {
            f"leaks found, of {options.simulations}": n_found,
            f"false alarms, of {n_none}": n_false,
            "intervals that contain 0.5 without leaks": float(np.mean(contain)),
        },
        "≥ 90 of 100 for each leak; ≤ 16 of 200; ≥ 0.93",
        min(n_found.values()) >= 0.9 * options.simulations and n_false <= 0.08 * n_none and np.mean(contain) >= 0.93,
        questions=options.questions,
        answers=K,
        draws=options.draws,
    )


if __name__ == "__main__":
    main()
