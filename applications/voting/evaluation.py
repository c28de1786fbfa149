"""Choose each rule's threshold on one half of the questions, and evaluate the rule on the other half."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from applications.voting.ballots import Ballots
from applications.voting.replay import Outcome, Replay
from applications.voting.weighting import weighted_winner
from extract.errors import InputError
from extract.sampling.prior import Prior, fit_prior
from extract.sampling.stopping import STOPPING_RULES, StoppingRule

MAX_LOSS = 0.01
#: Names of the `prior` rule and of the base rate, which is the mean accuracy on the other half of the questions.
PRIOR, BASE_RATE = "prior", "base_rate"
#: Votes that never stop early.
MAJORITY, WEIGHTED, BEST_TEMPERATURE, SINGLE = "majority", "weighted", "best_temperature", "single"
#: Function that takes outcomes [setting, question] and a mask of questions, and returns the index of the best setting.
Choose = Callable[[Outcome, NDArray[np.bool_]], int]


@dataclass(frozen=True)
class Evaluated:
    """Evaluation of a vote or a stopping rule.

    The setting (threshold or temperature) for each half of the questions is chosen on the other half.

    Attributes:
        outcome: Outcome with the chosen settings, [question].
        chosen: The setting chosen on each half. Empty if nothing is chosen.
        priors: The concentration κ and diversity θ of the prior fitted on each half. Empty without a prior.
        frontier: Outcome of each threshold, [threshold, question]. None without thresholds.
    """

    outcome: Outcome
    chosen: tuple[float, ...] = ()
    priors: tuple[tuple[float, float], ...] = ()
    frontier: Outcome | None = None


@dataclass(frozen=True)
class Evaluation:
    """Results of all votes and rules, and the majority vote's accuracy for different numbers of answers.

    Attributes:
        methods: The evaluated votes and rules, by name.
        numbers: Numbers of answers for which `curve` is computed.
        curve: Accuracy of the majority vote, [question, number]; NaN if the question has fewer answers.
    """

    methods: dict[str, Evaluated]
    numbers: list[int]
    curve: NDArray[np.float64]

    @property
    def mean_curve(self) -> NDArray[np.float64]:
        """Mean of `curve` for each number of answers, [number]. Questions with fewer answers are left out."""
        return np.nanmean(self.curve, axis=0)


def prior_name(confidence: str) -> str:
    """Return the method name of the `prior` rule that uses the given confidence."""
    return f"{PRIOR}_{confidence}"


def check_orders(orders: int) -> None:
    """Raise an InputError if `orders` is less than 10."""
    if orders < 10:
        raise InputError(f"Expected `orders` to be at least 10, but got {orders}. The default is 200.")


def evaluate_rules(
    ballots: list[Ballots],
    half: NDArray[np.int64],
    rules: list[str],
    confidences: Mapping[str, NDArray[np.float64]],
    orders: int,
    seed: int,
) -> Evaluation:
    """Evaluate all rules on held-out halves of the questions, by replaying the answers.

    Args:
        half: Half to which each question belongs (0 or 1), [question].
        confidences: Confidences [question] for the `prior` rule, by name. The results are named ``prior_NAME``. The
            rule is also evaluated with a constant confidence: the base rate of the other half of the questions.
    """
    priors = dict[str, list[list[Prior]]]()  # [method][half][question]
    if PRIOR in rules:
        base_rate = [np.full(len(half), _share_right(ballots, half == part)) for part in (0, 1)]
        values = {BASE_RATE: base_rate, **{name: [column, column] for name, column in confidences.items()}}
        priors = {
            prior_name(name): [_priors(ballots, half == part, columns[part]) for part in (0, 1)]
            for name, columns in values.items()
        }
    plain = [name for name in rules if name != PRIOR]
    budget = max(len(one.classes) for one in ballots)
    numbers = np.unique(np.geomspace(1, budget, 40).round().astype(int)).tolist()
    replayed: dict[str, list[tuple[Outcome, Outcome]]] = {name: [] for name in (*plain, *priors)}
    curve, full = [], []
    for question, one in enumerate(ballots):
        replay = Replay(one, orders, np.random.default_rng([seed, question]))
        for name in plain:
            replayed[name].append((replay.outcome(STOPPING_RULES[name]),) * 2)
        for name, of_half in priors.items():
            first, second = (replay.outcome(STOPPING_RULES[PRIOR], prior[question]) for prior in of_half)
            replayed[name].append((first, second))
        curve.append(replay.by_answers(numbers))
        full.append(replay.outcome(_WHOLE))
    majority = _only(Outcome.stack(full))
    methods = {SINGLE: Evaluated(_single(ballots)), MAJORITY: Evaluated(majority)}
    if weighted := _weighted(ballots, majority):
        methods[WEIGHTED] = Evaluated(weighted)
    if len(np.unique(ballots[0].temperatures)) > 1:
        methods[BEST_TEMPERATURE] = _best_temperature(ballots, half, orders, seed)
    for name in (*plain, *priors):
        rule = STOPPING_RULES[PRIOR if name in priors else name]
        of_halves = [Outcome.stack(outcomes) for outcomes in zip(*replayed[name], strict=True)]
        choose = partial(choose_threshold, accuracy=majority.accuracy)
        fitted = tuple((of_half[0].concentration, of_half[0].diversity) for of_half in priors.get(name, ()))
        methods[name] = replace(_cross_tuned(of_halves, half, choose, rule.thresholds), priors=fitted)
    return Evaluation(methods, numbers, np.stack(curve))


def choose_threshold(outcome: Outcome, questions: NDArray[np.bool_], accuracy: NDArray[np.float64]) -> int:
    """Return the index of the threshold that uses the fewest answers while losing at most `MAX_LOSS` in accuracy.

    If every threshold loses more, the most accurate threshold is chosen. `outcome` has shape [threshold, question].
    `questions` [question] is a mask. `accuracy` [question] is the accuracy of the vote over all answers.
    """
    reached = outcome.accuracy[:, questions].mean(1)
    enough = reached >= min(accuracy[questions].mean() - MAX_LOSS, reached.max())
    return int(np.where(enough, outcome.answers[:, questions].mean(1), np.inf).argmin())


def _cross_tuned(
    of_halves: list[Outcome], half: NDArray[np.int64], choose: Choose, settings: Sequence[float]
) -> Evaluated:
    """Choose a setting on each half of the questions, and evaluate it on the other half.

    `of_halves[i]` is the outcome [setting, question] for all questions, with priors (if any) fitted on half i.
    """
    chosen = np.array([choose(outcome, half == part) for part, outcome in enumerate(of_halves)])
    other, row = 1 - half, np.arange(len(half))
    tables = [np.stack(columns) for columns in zip(*of_halves, strict=True)]  # [half, setting, question]
    return Evaluated(
        Outcome(*(table[other, chosen[other], row] for table in tables)),
        tuple(settings[index] for index in chosen),
        frontier=Outcome(*(table[other, :, row].T for table in tables)),
    )


def _share_right(ballots: list[Ballots], questions: NDArray[np.bool_]) -> float:
    """Return the mean accuracy on the questions that a mask [question] selects."""
    return float(np.mean([ballots[i].right[ballots[i].classes].mean() for i in np.flatnonzero(questions)]))


def _priors(ballots: list[Ballots], questions: NDArray[np.bool_], confidence: NDArray[np.float64]) -> list[Prior]:
    """Fit the prior's parameters κ and θ to the questions selected by a mask. Return every question's prior."""
    counts = [
        (one.right[one.classes].sum(), len(one.classes), (~one.right[np.unique(one.classes)]).sum()) for one in ballots
    ]
    fitted = fit_prior(confidence[questions], *np.array(counts)[questions].T)
    return [Prior(value, *fitted) for value in confidence.tolist()]


_WHOLE = StoppingRule("", "", lambda answers, prior: np.full(answers.classes.shape, -np.inf), (0.0,), 0, (0, 0))


def _only(outcome: Outcome) -> Outcome:
    return Outcome(*(column[0] for column in outcome))


def _single(ballots: list[Ballots]) -> Outcome:
    accuracy = np.array([one.right[one.classes].mean() for one in ballots])
    tokens = np.array([one.n_tokens.mean() for one in ballots])
    return Outcome(accuracy, np.ones(len(ballots)), tokens, np.ones(len(ballots)))


def _weighted(ballots: list[Ballots], majority: Outcome) -> Outcome | None:
    """Evaluate the vote weighted by likelihoods. Returns None if there are no likelihoods."""
    winners = [weighted_winner(one.classes, one.likelihood) for one in ballots]
    if not any(np.isfinite(one.likelihood).any() for one in ballots):
        return None
    right = np.array([float(one.right[winner]) for one, winner in zip(ballots, winners, strict=True)])
    return majority._replace(accuracy=right)


def _best_temperature(ballots: list[Ballots], half: NDArray[np.int64], orders: int, seed: int) -> Evaluated:
    """Evaluate the majority vote on each half of the questions, at the temperature that is best on the other half."""
    temperatures = np.unique(ballots[0].temperatures)
    outcomes = [
        Outcome.stack(
            Replay(one.at(temperature), orders, np.random.default_rng([seed, question])).outcome(_WHOLE)
            for question, one in enumerate(ballots)
        )
        for temperature in temperatures
    ]
    outcome = Outcome(*(np.concatenate(columns) for columns in zip(*outcomes, strict=True)))

    def best(outcome: Outcome, questions: NDArray[np.bool_]) -> int:
        return int(outcome.accuracy[:, questions].mean(1).argmax())

    return replace(_cross_tuned([outcome] * 2, half, best, temperatures.tolist()), frontier=None)
