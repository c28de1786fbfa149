"""The figures of a comparison: each method's with intervals, both calibrations, and paired tests corrected for their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from probes.baselines.registry import BASELINES, counts
from probes.comparison.out_of_fold import OutOfFold
from probes.metrics import functional
from probes.metrics.intervals import paired_bootstrap
from probes.metrics.significance import bootstrap_p, holm, sign_flip
from probes.report.evaluate import Scored, evaluate, metric_of, usable


def scored(out: OutOfFold, name: str, half: bool) -> Scored:
    """A method's confidences of the tested questions, with all answers or those of the held-out half."""
    right, known = counts(out.data.table, half)
    rows = out.questions
    return Scored(out.confidence[name][rows], right[rows], known[rows], fold=out.fold[rows])


def scored_answers(out: OutOfFold, name: str) -> Scored:
    """A method's confidences of the graded answers to the tested questions; a question's confidence stands for all its answers."""
    answers = out.data.table.answers
    question = torch.from_numpy(answers.question)
    rows = (torch.from_numpy(answers.known).bool() & (out.fold[question] >= 0)).nonzero()[:, 0]
    given = out.of_answers[name] if name in out.of_answers else out.confidence[name][question]
    right, known = torch.from_numpy(answers.right), torch.from_numpy(answers.known)
    return Scored(given[rows], right[rows], known[rows], question[rows], out.fold[question[rows]])


def is_half(name: str) -> bool:
    """Whether a method spends one half of the answers and is scored on the other."""
    return name in BASELINES and BASELINES[name].half


def figures(out: OutOfFold, name: str, half: bool, n_resamples: int, seed: int) -> dict[str, Any]:
    """All figures of a method on questions, with the two calibrations: against accuracies, and against single answers.

    `response_brier` is the Brier score against single answers, `gap` what it has more than the capability's: the mean
    p(1−p), which no confidence that is given before the answer can take away.
    """
    method, reference = scored(out, name, half), scored(out, "constant", half).confidence
    unknown = out.data.table.held_unknown if half else out.data.table.unknown
    record = evaluate(method, int(torch.from_numpy(unknown)[out.questions].sum()), reference, n_resamples, seed)
    kept = method.take(usable(method))
    if record["brier"] is None:
        return {**record, "response_brier": None, "gap": None}
    against_answers = float(functional.response_brier(kept.confidence, kept.right, kept.known))
    return {**record, "response_brier": against_answers, "gap": against_answers - record["brier"]["value"]}


def answer_figures(out: OutOfFold, name: str, n_resamples: int, seed: int) -> dict[str, Any]:
    """All figures of a method on single answers."""
    answers, tested = out.data.table.answers, out.fold[torch.from_numpy(out.data.table.answers.question)] >= 0
    n_unknown = int(((1 - torch.from_numpy(answers.known)) * tested).sum())
    return evaluate(scored_answers(out, name), n_unknown, 0.5, n_resamples, seed, target="response")


def paired_tests(
    out: OutOfFold, pairs: Sequence[tuple[str, str]], n_resamples: int = 10_000, seed: int = 0
) -> list[dict[str, Any]]:
    """Paired tests of methods on the same questions and answers, each metric's p-values corrected for their number (Holm).

    AUROC by the paired bootstrap over questions; Brier by sign flips of the questions' differences.
    """
    rows: list[dict[str, Any]] = []
    for a, b in pairs:
        half = is_half(a) or is_half(b)
        first, second = scored(out, a, half), scored(out, b, half)
        both = usable(first) & usable(second)
        first, second, n = first.take(both), second.take(both), int(both.sum())
        reference = scored(out, "constant", half).confidence[both]
        for metric in ("auroc", "brier"):
            ours, theirs = (metric_of(one, metric, reference) for one in (first, second))
            difference = paired_bootstrap(ours, theirs, n, seed=seed) if n else None
            if difference is None:
                continue
            if metric == "brier":
                terms = [functional.brier_terms(one.confidence, one.right, one.known) for one in (first, second)]
                p: float | None = sign_flip(terms[0] - terms[1], n_resamples, seed)
            else:
                p = bootstrap_p(ours, theirs, n, n_resamples, seed)
            rows.append({"a": a, "b": b, "metric": metric, "half": half, "n_questions": n, **difference, "p": p})
    for metric in ("auroc", "brier"):
        chosen = [row for row in rows if row["metric"] == metric]
        adjusted = holm(
            torch.tensor([torch.nan if row["p"] is None else row["p"] for row in chosen], dtype=torch.float64)
        )
        for row, value in zip(chosen, adjusted.tolist(), strict=True):
            row["p_holm"] = None if value != value else value
    return rows
