"""Rules that stop sampling answers to a question early. To add a rule, register it here.

Equal answers form a class. An answer that cannot be parsed forms a class of its own. After each answer, a rule computes
evidence from the classes so far and compares it with a threshold. The decision is the leading (most frequent) answer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from extract.registry import Registry
from extract.sampling.prior import Prior, expected_gain

#: For two-stage voting: fraction of the temperatures that must agree, and minimum number of answers per temperature.
CROSS, LEAST_ANSWERS = 1.0, 3


@dataclass(frozen=True)
class Answers:
    """Answers to one question, in the order drawn or in several random orders.

    Random orders are used when stored answers are replayed.

    Attributes:
        classes: Class of each answer so far, numbered from 0, [order, answer] int64.
        temperatures: Temperature of each answer, including answers not drawn yet, [budget] float64.
    """

    classes: NDArray[np.int64]
    temperatures: NDArray[np.float64]

    @cached_property
    def counts(self) -> NDArray[np.int16]:
        """Cumulative number of answers in each class, [order, answer, class]."""
        return count(self.classes, int(self.classes.max()) + 1)

    @cached_property
    def leader(self) -> NDArray[np.int64]:
        """Leading class after each answer, [order, answer]. Ties go to the class that occurred first."""
        return leading(self.counts)


class Decision(NamedTuple):
    """Decision of a rule, based on the answers to a question so far.

    Attributes:
        reason: Why sampling stops: ``"rule"``, or ``"budget"`` if all answers have been drawn. None if it continues.
        leader: Class of the leading answer.
        n_answers: Number of answers on which the decision and `evidence` are based.
    """

    reason: Literal["rule", "budget"] | None
    leader: int
    n_answers: int
    evidence: float


@dataclass(frozen=True)
class StoppingRule:
    """A stopping rule, with its possible thresholds.

    Attributes:
        label: Name in tables.
        description: Condition for stopping, with the placeholder {threshold}.
        evidence: Function of a question's answers (in one or more orders) and the question's prior. It returns the
            evidence after each answer, [order, answer]. Most rules ignore the prior.
        thresholds: Thresholds that ``python -m applications vote`` compares.
        threshold: Default threshold.
        bounds: Smallest and largest valid threshold.
        needs: What the rule requires: several temperatures, a prior, or nothing (None).
        stops: Function that takes the evidence and the threshold. For each answer, it returns whether sampling stops
            there, [order, answer].
    """

    label: str
    description: str
    evidence: Callable[[Answers, Prior | None], NDArray[np.float64]]
    thresholds: tuple[float, ...]
    threshold: float
    bounds: tuple[float, float]
    needs: Literal["temperatures", "prior"] | None = None
    stops: Callable[[NDArray[np.float64], float], NDArray[np.bool_]] = np.greater_equal

    def decide(self, answers: Answers, threshold: float, prior: Prior | None = None) -> Decision:
        """Apply the rule to one ordering of the answers to a question.

        Answers that were drawn after the rule was first met are ignored.
        """
        evidence = self.evidence(answers, prior)
        stops = self.stops(evidence, threshold)[0]
        n_answers = int(stops.argmax()) + 1 if stops.any() else len(stops)
        reason: Literal["rule", "budget"] | None = "rule" if stops.any() else None
        if n_answers == len(answers.temperatures):
            reason = "budget"
        return Decision(reason, int(answers.leader[0, n_answers - 1]), n_answers, float(evidence[0, n_answers - 1]))


def count(classes: NDArray[np.int64], n_classes: int) -> NDArray[np.int16]:
    """Compute the cumulative number of answers in each class, [order, answer, class]."""
    return (classes[..., None] == np.arange(n_classes)).cumsum(1, dtype=np.int16)


def leading(counts: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the leading class after each answer, [order, answer]. Ties go to the class that occurred first.

    `counts` is the result of `count`, [order, answer, class].

    >>> leading(count(np.array([[2, 1, 1, 0]]), 3))
    array([[2, 2, 1, 1]])
    """
    n = counts.shape[1]
    unseen = (counts == 0).sum(1, dtype=np.int32, keepdims=True)
    return (counts * np.int32(n + 1) - unseen).argmax(-1)


def two_stage(
    answers: Answers, prior: Prior | None = None, cross: float = CROSS, least: int = LEAST_ANSWERS
) -> NDArray[np.float64]:
    """Compute the evidence for stopping in two-stage voting over temperatures (arXiv 2510.02611).

    For each temperature, τ_intra is the relative frequency of the most frequent answer. The evidence is the smallest
    τ_intra, or −∞ in three cases:

    - The fraction of temperatures that agree on the most frequent answer is below `cross` (τ_cross).
    - A temperature other than 0 has fewer than `least` answers. (The paper has no such minimum.)
    - The current round is not complete. A round consists of one answer per temperature.
    """
    evidence = np.full(answers.classes.shape, -np.inf)
    drawn = answers.classes.shape[1]
    columns = {t: np.flatnonzero(answers.temperatures == t) for t in np.unique(answers.temperatures)}
    rounds = [places for t, places in columns.items() if t > 0]
    ends = np.max([places[: min(map(len, rounds))] for places in rounds], axis=0)
    ends = np.maximum(ends, max(places[0] for places in columns.values()))
    n_rounds = int((ends < drawn).sum())
    if n_rounds < max(least, 1):
        return evidence
    n_classes = int(answers.classes.max()) + 1
    modes, shares = [], []
    for t, places in columns.items():
        classes = answers.classes[:, places[: n_rounds if t > 0 else 1]]
        held = count(classes, n_classes)
        modes.append(np.broadcast_to(leading(held), (len(classes), n_rounds)))
        shares.append(np.broadcast_to(held.max(-1) / held.sum(-1), (len(classes), n_rounds)))
    agreeing = (np.array(modes)[..., None] == np.arange(n_classes)).mean(0).max(-1)
    share = np.where(agreeing >= cross, np.min(shares, axis=0), -np.inf)
    evidence[:, ends[least - 1 : n_rounds]] = share[:, least - 1 :]
    return evidence


def adaptive_consistency(answers: Answers, prior: Prior | None = None) -> NDArray[np.float64]:
    r"""Compute the evidence for stopping under Adaptive-Consistency's beta criterion (arXiv 2305.11860).

    .. math:: P(q > \tfrac12), \quad q \sim \mathrm{Beta}(v_1 + 1, v_2 + 1)

    where v₁ ≥ v₂ are the counts of the two most frequent answers.
    """
    largest = np.sort(answers.counts, axis=-1)[..., -2:]
    first, second = largest[..., -1], largest[..., 0] if largest.shape[-1] > 1 else 0
    return _beta_above_half(answers.classes.shape[1])[first, second]


@lru_cache(maxsize=8)
def _beta_above_half(n: int) -> NDArray[np.float64]:
    """Return a table [v₁, v₂] of P(q > ½) for q ~ Beta(v₁ + 1, v₂ + 1)."""
    side = np.arange(n + 1.0)
    return betainc(side + 1, side[:, None] + 1, 0.5)


def run_length(answers: Answers, prior: Prior | None = None) -> NDArray[np.float64]:
    """Compute the evidence for stopping in early-stopping self-consistency.

    The evidence is the number of consecutive equal answers, up to and including the current one.
    """
    classes = answers.classes
    place = np.arange(classes.shape[1])
    changed = np.diff(classes, axis=1, prepend=-1) != 0
    start = np.maximum.accumulate(np.where(changed, place, 0), axis=1)
    return (place + 1 - start).astype(np.float64)


def windows_agree(evidence: NDArray[np.float64], threshold: float) -> NDArray[np.bool_]:
    """Return whether each answer completes a window of `threshold` equal answers. Windows do not overlap."""
    ends = np.arange(1, evidence.shape[1] + 1) % threshold == 0
    return ends & (evidence >= threshold)


def prior_evidence(answers: Answers, prior: Prior | None) -> NDArray[np.float64]:
    """Compute the `prior` rule's evidence against stopping: the expected gain from the remaining budget."""
    assert prior is not None
    return expected_gain(prior, answers.counts, len(answers.temperatures))


STOPPING_RULES = Registry(
    "rule",
    {
        "two_stage": StoppingRule(
            "two-stage voting",
            "all temperatures have the same most frequent answer, and its frequency at each temperature is at least "
            "{threshold}",
            two_stage,
            (0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
            threshold=0.8,
            bounds=(0, 1),
            needs="temperatures",
        ),
        "adaptive_consistency": StoppingRule(
            "Adaptive-Consistency",
            "the leading answer is more likely than the second, with a posterior probability of at least {threshold}",
            adaptive_consistency,
            (*(0.7, 0.75, 0.8, 0.84, 0.87, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 0.999),),
            threshold=0.95,
            bounds=(0.5, 1),
        ),
        "early_stopping": StoppingRule(
            "early-stopping self-consistency",
            "all answers in a window are equal, where {threshold} is the length of the window",
            run_length,
            (2, 3, 4, 5, 6, 8, 10),
            threshold=5,
            bounds=(2, 1000),
            stops=windows_agree,
        ),
        "prior": StoppingRule(
            "sampling with a prior",
            "the remaining budget is expected to raise the accuracy by at most {threshold}",
            prior_evidence,
            (0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.025, 0.02, 0.015, 0.01, 0.005, 0.002, 0.001),
            threshold=0.01,
            bounds=(0, 1),
            needs="prior",
            stops=np.less_equal,
        ),
    },
)
