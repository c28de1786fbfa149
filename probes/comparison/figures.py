"""The numbers of a comparison: metrics of each method with intervals, and paired tests, corrected for their number."""

from collections.abc import Sequence
from typing import Any

import torch

from probes.baselines.registry import counts, is_half
from probes.comparison.out_of_fold import OutOfFold
from probes.metrics import functional
from probes.metrics.significance import add_holm
from probes.report.evaluate import Scored, common_rows, difference, evaluate


def scored(out: OutOfFold, name: str, half: bool) -> Scored:
    """Confidences of a method for the tested questions, with all answers or with those of the held-out half."""
    right, known = counts(out.data.table, half)
    rows = out.questions
    return Scored(out.confidence[name][rows], right[rows], known[rows], fold=out.fold[rows])


def figures(out: OutOfFold, name: str, half: bool, n_resamples: int, seed: int) -> dict[str, Any]:
    """All metrics of a method on questions, see `evaluate`, against accuracies and against single answers.

    `response_brier` is the Brier score against single answers. `gap` is its excess over the debiased Brier score: the
    mean of p(1−p), which no confidence given before the answer can remove.
    """
    method, reference = scored(out, name, half), scored(out, "constant", half).confidence
    unknown = out.data.table.held_unknown if half else out.data.table.unknown
    record = evaluate(method, int(torch.from_numpy(unknown)[out.questions].sum()), reference, n_resamples, seed)
    if record["brier"] is None:
        return {**record, "response_brier": None, "gap": None}
    method = method.take(method.usable)
    against_answers = float(functional.response_brier(method.confidence, method.right, method.known))
    return {**record, "response_brier": against_answers, "gap": against_answers - record["brier"]["value"]}


def answer_figures(out: OutOfFold, name: str, n_resamples: int, seed: int) -> dict[str, Any]:
    """All metrics of a method on the graded answers to the tested questions, see `evaluate`.

    A method for questions gives all answers to a question the same confidence.
    """
    answers = out.data.table.answers
    question, right, known = (torch.from_numpy(column) for column in (answers.question, answers.right, answers.known))
    tested = out.fold[question] >= 0
    rows = (known.bool() & tested).nonzero()[:, 0]
    confidence = out.of_answers[name] if name in out.of_answers else out.confidence[name][question]
    method = Scored(confidence[rows], right[rows], known[rows], question[rows], out.fold[question[rows]])
    return evaluate(method, int(((1 - known) * tested).sum()), 0.5, n_resamples, seed)


def paired_tests(
    out: OutOfFold, pairs: Sequence[tuple[str, str]], n_resamples: int = 10_000, seed: int = 0
) -> list[dict[str, Any]]:
    """Paired tests of methods on the same questions and answers, with p-values corrected over each metric (Holm).

    AUROC by the paired bootstrap over questions, Brier by sign flips of the differences of the questions.

    Args:
        out: Out-of-fold confidences.
        pairs: Names of methods a and b.
        n_resamples: Resamples, or sign flips, behind each p-value.
        seed: Seed of both.

    Returns:
        One record per pair and metric that has a difference: `a`, `b`, `metric`, `half`, `n_questions`, the difference
        a − b as `value`, `low` and `high`, `p` and `p_holm`.
    """
    tests: list[dict[str, Any]] = []
    for a, b in pairs:
        half = is_half(a) or is_half(b)
        first, second = common_rows(scored(out, a, half), scored(out, b, half))
        for metric in ("auroc", "brier"):
            test = difference(first, second, metric, seed=seed, n_draws=n_resamples)
            if test is not None:
                names = {"a": a, "b": b, "metric": metric, "half": half}
                tests.append({**names, "n_questions": first.n_questions, **test})
    for metric in ("auroc", "brier"):
        add_holm([test for test in tests if test["metric"] == metric])
    return tests
