"""Build the record, the Markdown page and the table that compare votes and stopping rules."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from applications.confidences import named_confidences
from applications.stores import known_temperature
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
    prior_name,
)
from applications.voting.replay import Outcome
from datamodules.splits import split_questions
from extract.errors import InputError
from extract.sampling.stopping import CROSS, LEAST_ANSWERS, STOPPING_RULES
from probes.metrics.intervals import WeightedMetric, bootstrap
from probes.report.results import record_header
from probes.report.templates import method_label, render

LEAST_QUESTIONS = 20
LABELS = {
    SINGLE: "one answer",
    MAJORITY: "majority vote",
    WEIGHTED: "likelihood-weighted vote",
    BEST_TEMPERATURE: "majority vote at the best temperature",
    **{name: rule.label for name, rule in STOPPING_RULES.items()},
}


def label_of(name: str) -> str:
    """Return the name that tables use for a method."""
    confidence = name.removeprefix(f"{PRIOR}_")
    return LABELS.get(name) or f"{LABELS[PRIOR]}, {method_label(confidence)}"


def halves(poll: Poll, seed: int) -> NDArray[np.int64]:
    """Split the questions into two halves, stratified by group. Return 0 or 1 for each question."""
    if len(poll.ballots) < LEAST_QUESTIONS:
        raise InputError(
            f"Expected at least {LEAST_QUESTIONS} questions with votes, but got {len(poll.ballots)}. The rules are "
            "tuned on one half of the questions and evaluated on the other half. Sample answers to more questions."
        )
    ids, groups = ([column[row] for row in poll.questions] for column in (poll.table.ids, poll.table.groups))
    return np.array(split_questions(ids, groups, [0.5, 0.5], seed))


def choose_rules(rules: Sequence[str] | None, poll: Poll) -> list[str]:
    """Return the rules to evaluate. The default is all applicable rules."""
    is_grid = len(poll.stores) > 1
    if rules is None:
        return [name for name, rule in STOPPING_RULES.items() if is_grid or rule.needs != "temperatures"]
    if not is_grid and (wrong := [name for name in rules if STOPPING_RULES[name].needs == "temperatures"]):
        raise InputError(
            f"Expected `rules` that apply to a single store, but got {wrong[0]}, which compares temperatures. Leave "
            "it out, or pass the folder of a temperature grid."
        )
    return [name for name in rules if STOPPING_RULES[name]]


def read_confidences(sources: Sequence[str], poll: Poll) -> dict[str, NDArray[np.float64]]:
    """Return a dict from the name of each source to its confidences [question]."""
    found = named_confidences(sources, next(iter(poll.stores.values())), reserved=[BASE_RATE])
    for name, values in found.items():
        if n_missing := int(np.isnan(values[poll.questions]).sum()):
            raise InputError(
                f"Expected {name!r} to contain a confidence for every question with votes, but {n_missing} of "
                f"{len(poll.questions)} questions have none. Pass a table with all questions."
            )
    return {name: values[poll.questions] for name, values in found.items()}


def vote_record(
    poll: Poll, evaluation: Evaluation, confidences: Collection[str], orders: int, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Compute the content of vote.json."""
    n, options = len(poll.ballots), {"n_resamples": n_resamples, "seed": seed}
    outcomes = {name: method.outcome for name, method in evaluation.methods.items()}
    full, priors = outcomes[MAJORITY], [prior_name(name) for name in (BASE_RATE, *confidences)]

    def mean(values: NDArray[np.float64]) -> Mapping[str, Any] | None:
        return bootstrap(_mean(values), n, **options)

    def thresholds(name: str, frontier: Outcome | None) -> list[dict[str, Any]]:
        if frontier is None or name not in (*STOPPING_RULES, *priors):
            return []
        columns = zip(frontier.accuracy, frontier.answers, strict=True)
        rule = STOPPING_RULES[PRIOR if name in priors else name]
        return [
            {"threshold": threshold, "accuracy": mean(accuracy), "answers": mean(answers)}
            for threshold, (accuracy, answers) in zip(rule.thresholds, columns, strict=True)
        ]

    methods = {
        name: {
            **{column: mean(values) for column, values in method.outcome._asdict().items()},
            "difference": mean(method.outcome.accuracy - full.accuracy),
            "share_of_answers": bootstrap(_ratio(method.outcome.answers, full.answers), n, **options),
            "chosen": list(method.chosen),
            "thresholds": thresholds(name, method.frontier),
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
        for a, b in _pairs(confidences)
        if a in outcomes and b in outcomes
    ]
    return {
        **record_header(next(iter(poll.stores.values())), poll.table, seed, n_resamples),
        "identities": [store.sha256 for store in poll.stores.values()],
        "temperatures": [*map(known_temperature, poll.stores)],
        "confidences": list(confidences),
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


def _pairs(confidences: Collection[str]) -> list[tuple[str, str]]:
    """Return the pairs of methods to compare."""
    base_rate, others = prior_name(BASE_RATE), ("adaptive_consistency", "early_stopping")
    own = [(prior_name(name), other) for name in confidences for other in (*others, base_rate)]
    return [*own, (base_rate, "adaptive_consistency")]


def _mean(values: NDArray[np.float64]) -> WeightedMetric:
    return _ratio(values, np.ones(len(values)))


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64]) -> WeightedMetric:
    above, below = torch.from_numpy(numerator), torch.from_numpy(denominator)
    return lambda weights: (weights @ above) / (weights @ below)


def vote_table(poll: Poll, half: NDArray[np.int64], evaluation: Evaluation) -> pa.Table:
    """Return a table with one row per question."""
    columns: dict[str, Any] = {
        "question_id": [poll.table.ids[row] for row in poll.questions],
        "half": half,
        "n_answers": [len(one.classes) for one in poll.ballots],
    }
    for name, method in evaluation.methods.items():
        columns |= {f"{name}_accuracy": method.outcome.accuracy, f"{name}_answers": method.outcome.answers}
    return pa.table(columns)


def vote_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    context = {"label_of": label_of, "rules": STOPPING_RULES, "verdict": vote_verdict(record), "plots": plots}
    return render("voting/vote.md.j2", record=record, **context)


def vote_verdict(record: dict[str, Any]) -> str:
    """Summarise the results of the majority vote and of the `prior` rule.

    The `prior` rule uses the first source of confidences, or the base rate if there is no source.
    """
    best = prior_name([BASE_RATE, *record["confidences"]][:2][-1])
    return render("voting/verdict.md.j2", record=record, best=best, label_of=label_of)
