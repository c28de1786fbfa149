"""Record, Markdown page and table of a comparison of votes and stopping rules."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from applications.confidences import confidence_name, read_confidence
from applications.voting.ballots import Poll
from applications.voting.evaluation import (
    BASE_RATE,
    BEST_TEMPERATURE,
    MAJORITY,
    MAX_LOSS,
    PRIOR,
    SINGLE,
    WEIGHTED,
    Evaluation,
)
from datamodules.splits import split_questions
from extract.errors import InputError
from extract.sampling.stopping import CROSS, LEAST_ANSWERS, STOPPING_RULES
from probes.metrics.intervals import WeightedMetric, bootstrap
from probes.report.results import record_header
from probes.report.templates import render

#: Minimum number of questions.
LEAST_QUESTIONS = 20
#: Names of the methods in tables.
LABELS = {
    SINGLE: "one answer",
    MAJORITY: "majority vote",
    WEIGHTED: "likelihood-weighted vote",
    BEST_TEMPERATURE: "majority vote at the best temperature",
    **{name: rule.label for name, rule in STOPPING_RULES.items()},
    BASE_RATE: "sampling with a prior, base rate",
}


#: Pairs of rules whose accuracies and numbers of answers are compared.
_PAIRS = (
    (PRIOR, "adaptive_consistency"),
    (PRIOR, "early_stopping"),
    (PRIOR, BASE_RATE),
    (BASE_RATE, "adaptive_consistency"),
)


def halves(poll: Poll, seed: int) -> NDArray[np.int64]:
    """Divide the questions into halves, stratified by group. Returns the half of each question, 0 or 1.

    Raises:
        InputError: If there are too few questions.
    """
    if len(poll.ballots) < LEAST_QUESTIONS:
        raise InputError(
            f"Expected at least {LEAST_QUESTIONS} questions with votes, because the rules are tuned on one half of "
            f"them, but got {len(poll.ballots)}. Sample answers to more questions."
        )
    ids, groups = ([column[row] for row in poll.questions] for column in (poll.table.ids, poll.table.groups))
    return np.array(split_questions(ids, groups, [0.5, 0.5], seed))


def choose_rules(rules: Sequence[str] | None, poll: Poll) -> list[str]:
    """Return the names of the rules to evaluate, by default all that apply.

    Raises:
        InputError: If a rule is unknown, or needs a temperature grid and there is none.
    """
    is_grid = len(poll.stores) > 1
    if rules is None:
        return [name for name, rule in STOPPING_RULES.items() if is_grid or rule.needs != "temperatures"]
    if not is_grid and (wrong := [name for name in rules if STOPPING_RULES[name].needs == "temperatures"]):
        raise InputError(
            f"Expected `rules` without {wrong[0]} for a single store, because it compares temperatures. Pass the "
            "folder of a temperature grid."
        )
    return [name for name in rules if STOPPING_RULES[name]]


def read_confidences(source: str | None, poll: Poll) -> NDArray[np.float64] | None:
    """Read the confidence of each question with votes, or return None without a source.

    Raises:
        InputError: If the confidences cannot be used, or a question has none.
    """
    if source is None:
        return None
    values = read_confidence(source, next(iter(poll.stores.values())))[poll.questions]
    if np.isnan(values).any():
        raise InputError(
            f"Expected a confidence for every question with votes in {source!r}, but {np.isnan(values).sum()} of "
            f"{len(values)} have none. Pass a table with all questions."
        )
    return values


def vote_record(
    poll: Poll, evaluation: Evaluation, source: str | None, orders: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Compute the content of vote.json: the figures of all methods with 95 % intervals, and paired differences."""
    n, options = len(poll.ballots), {"n_resamples": n_resamples, "seed": seed}
    outcomes = {name: method.outcome for name, method in evaluation.methods.items()}
    full = outcomes[MAJORITY]

    def mean(values: NDArray[np.float64]) -> Mapping[str, Any] | None:
        return bootstrap(_mean(values), n, **options)

    methods = {
        name: {
            **{column: mean(values) for column, values in method.outcome._asdict().items()},
            "difference": mean(method.outcome.accuracy - full.accuracy),
            "share_of_answers": bootstrap(_ratio(method.outcome.answers, full.answers), n, **options),
            "chosen": list(method.chosen),
            "priors": [{"concentration": kappa, "diversity": theta} for kappa, theta in method.priors],
        }
        for name, method in evaluation.methods.items()
    }
    pairs = [
        {
            "a": a,
            "b": b,
            "accuracy": mean(outcomes[a].accuracy - outcomes[b].accuracy),
            "answers": mean(outcomes[a].answers - outcomes[b].answers),
            "ratio": bootstrap(_ratio(outcomes[a].answers, outcomes[b].answers), n, **options),
        }
        for a, b in _PAIRS
        if a in outcomes and b in outcomes
    ]
    return {
        **record_header(next(iter(poll.stores.values())), poll.table, seed, n_resamples),
        "identities": [store.sha256 for store in poll.stores.values()],
        "temperatures": list(poll.stores),
        "confidence": source and confidence_name(source),
        "orders": orders,
        "max_loss": MAX_LOSS,
        "two_stage": {"cross": CROSS, "least_answers": LEAST_ANSWERS},
        "n_questions": n,
        "n_questions_left_out": len(poll.table.ids) - n,
        "n_answers": int(sum(len(one.classes) for one in poll.ballots)),
        "methods": methods,
        "pairs": pairs,
        "curve": {"answers": evaluation.numbers, "accuracy": evaluation.mean_curve.tolist()},
    }


def _mean(values: NDArray[np.float64]) -> WeightedMetric:
    """Return the mean over questions [question] as a function of resampling weights."""
    return _ratio(values, np.ones(len(values)))


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> WeightedMetric:
    """Return the ratio of two sums over questions, each [question], as a function of resampling weights."""
    above, below = torch.from_numpy(numerator), torch.from_numpy(denominator)
    return lambda weights: (weights @ above) / (weights @ below)


def vote_table(poll: Poll, half: NDArray[np.int64], evaluation: Evaluation) -> pa.Table:
    """Return one row per question with its half, and the accuracy and the number of answers of each method."""
    columns: dict[str, Any] = {
        "question_id": [poll.table.ids[row] for row in poll.questions],
        "half": half,
        "n_answers": [len(one.classes) for one in poll.ballots],
    }
    for name, method in evaluation.methods.items():
        columns |= {f"{name}_accuracy": method.outcome.accuracy, f"{name}_answers": method.outcome.answers}
    return pa.table(columns)


def vote_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the pictures `plots`."""
    context = {"labels": LABELS, "rules": STOPPING_RULES, "verdict": vote_verdict(record), "plots": plots}
    return render("voting/vote.md.j2", record=record, **context)


def vote_verdict(record: dict[str, Any]) -> str:
    """Describe how many answers the rules save, and at what loss of accuracy."""
    return render("voting/verdict.md.j2", record=record, labels=LABELS)
