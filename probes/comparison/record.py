"""A comparison as one record, for machines: figures of every method, costs, tests, choices, and what is missing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from probes.baselines.registry import BASELINES, Cost, free
from probes.comparison.figures import answer_figures, figures, is_half, paired_tests
from probes.comparison.out_of_fold import BEST, OutOfFold
from probes.registry import PROBES
from probes.report.results import record_header

#: Methods for questions whose confidence also stands in the table of single answers.
_ALSO_FOR_ANSWERS = ("constant", "base_rate", BEST)


def comparison_record(out: OutOfFold, n_folds: int, n_resamples: int, seed: int) -> dict[str, Any]:
    """Everything that a comparison says.

    Args:
        out: Out-of-fold confidences.
        n_folds: Number of folds.
        n_resamples: Resamples behind each interval; p-values take five times as many.
        seed: Seed of the resamples.

    Returns:
        ``methods``: figures by method on all answers, or on the held-out half for those that spend the other (`half`);
        ``on_half``: the chosen probe on that half; ``answers``: figures on single answers; ``tests``; ``chosen``; ``masked``; ``notes``.
    """
    table = out.data.table
    methods = {name: _method(out, name, n_resamples, seed) for name in out.confidence}
    of_answers = [*out.of_answers, *(name for name in _ALSO_FOR_ANSWERS if name in out.confidence)]
    baselines = [name for name in out.confidence if name not in PROBES and name != BEST]
    pairs = [(BEST, name) for name in baselines] + [(name, "constant") for name in PROBES if name in out.confidence]
    return {
        **record_header(out.data.store, table, seed, n_resamples),
        "folds": n_folds,
        "n_questions": len(out.questions),
        "n_answers": int(table.known[out.questions].sum()),
        "accuracy": float(np.mean(table.accuracy[out.questions])),
        "methods": methods,
        "on_half": {BEST: figures(out, BEST, True, n_resamples, seed)},
        "answers": {name: answer_figures(out, name, n_resamples, seed) for name in of_answers},
        "tests": paired_tests(out, pairs, 5 * n_resamples, seed),
        "chosen": out.chosen,
        "masked": out.masked,
        "notes": out.notes,
    }


def _method(out: OutOfFold, name: str, n_resamples: int, seed: int) -> dict[str, Any]:
    cost = mean_cost(out, name)
    return {
        "kind": "chosen" if name == BEST else "probe" if name in PROBES else "baseline",
        "half": is_half(name),
        "tokens_read": cost[0],
        "tokens_written": cost[1],
        **figures(out, name, is_half(name), n_resamples, seed),
    }


def mean_cost(out: OutOfFold, name: str) -> tuple[float | None, float | None]:
    """Tokens that the answering model reads and writes for a method's number, a question on average; None where unknown."""
    if name in BASELINES:
        cost = BASELINES[name].cost(out.data)
    elif name in PROBES or name == BEST:
        cost = Cost(out.data.table.prompt_tokens, np.zeros_like(out.data.table.prompt_tokens))
    else:
        cost = free(out.data)  # an encoder of its own reads the question
    read, written = (float(tokens[out.questions].mean()) for tokens in cost)
    return None if math.isnan(read) else read, None if math.isnan(written) else written


def cheap_baselines(record: dict[str, Any]) -> list[str]:
    """Baselines that cost no more tokens than the chosen probe, reading and writing together, as far as that is known."""
    methods = record["methods"]
    budget = (methods[BEST]["tokens_read"] or 0) + (methods[BEST]["tokens_written"] or 0)
    return [
        name
        for name, one in methods.items()
        if one["kind"] == "baseline"
        and None not in (one["tokens_read"], one["tokens_written"])
        and one["tokens_read"] + one["tokens_written"] <= budget + 1e-9
    ]
