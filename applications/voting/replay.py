"""Replay stored answers in random orders, and measure where a rule stops and how often it is right."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from applications.voting.ballots import Ballots
from extract.sampling.prior import Prior
from extract.sampling.stopping import Answers, StoppingRule


class Outcome(NamedTuple):
    """Results of a stopping rule, averaged over random orders of the answers.

    Shapes are [threshold] or [threshold, question].

    Attributes:
        accuracy: Fraction of orders in which the decision is right.
        answers: Number of answers used.
        tokens: Number of generated tokens used; NaN if unknown.
        exits: Fraction of orders in which the rule stops before the last answer.
    """

    accuracy: NDArray[np.float64]
    answers: NDArray[np.float64]
    tokens: NDArray[np.float64]
    exits: NDArray[np.float64]

    @classmethod
    def stack(cls, outcomes: Iterable["Outcome"]) -> "Outcome":
        """Join the outcomes of several questions."""
        return cls(*(np.stack(column, axis=-1) for column in zip(*outcomes, strict=True)))


class Replay:
    """Answers to one question in random orders. Answers are permuted only within each temperature."""

    def __init__(self, ballots: Ballots, orders: int, rng: np.random.Generator) -> None:
        self._order = shuffled(ballots.temperatures, orders, rng)
        self.answers = Answers(ballots.classes[self._order], ballots.temperatures)
        self.right = ballots.right[self.answers.leader]
        self._tokens = ballots.n_tokens[self._order].cumsum(1)

    def outcome(self, rule: StoppingRule, prior: Prior | None = None) -> Outcome:
        """Return the outcome of a rule for each of its thresholds."""
        evidence = rule.evidence(self.answers, prior)
        found = []
        for threshold in rule.thresholds:
            stops = rule.stops(evidence, threshold)
            exits = stops[:, :-1].any(1)
            last = np.where(exits, stops.argmax(1), stops.shape[1] - 1)
            rows = np.arange(len(stops)), last
            found.append((self.right[rows].mean(), last.mean() + 1, self._tokens[rows].mean(), exits.mean()))
        return Outcome(*np.array(found).T)

    def by_answers(self, numbers: Iterable[int]) -> NDArray[np.float64]:
        """For each n, return the accuracy of a majority vote over the first n answers; NaN if there are fewer."""
        means = self.right.mean(0)
        return np.array([means[n - 1] if n <= len(means) else np.nan for n in numbers])


def shuffled(temperatures: NDArray[np.float64], orders: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw random orders [order, answer] of the answers. Answers are permuted only within each temperature."""
    order = np.tile(np.arange(len(temperatures)), (orders, 1))
    for temperature in np.unique(temperatures):
        places = np.flatnonzero(temperatures == temperature)
        order[:, places] = rng.permuted(order[:, places], axis=1)
    return order
