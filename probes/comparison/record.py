"""The record of a comparison: metrics and costs of every method, tests, choices, and what is missing."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from probes.baselines.registry import BASELINES, cost_of, is_half
from probes.comparison.figures import answer_figures, figures, paired_tests
from probes.comparison.out_of_fold import BEST, OutOfFold
from probes.registry import PROBES
from probes.report.results import record_header

#: Methods for questions whose confidence also stands in the table of single answers.
_ALSO_FOR_ANSWERS = ("constant", "base_rate", BEST)


def comparison_record(out: OutOfFold, n_folds: int, n_resamples: int, seed: int) -> dict[str, Any]:
    """The record of a comparison.

    Args:
        out: Out-of-fold confidences.
        n_folds: Number of folds.
        n_resamples: Resamples behind each interval; p-values take five times as many.
        seed: Seed of the resamples.

    Returns:
        ``methods``: metrics by method on all answers, or on the held-out half for methods that use the other (`half`);
        ``on_half``: the chosen probe on that half; ``answers``: metrics on single answers; ``tests``; ``chosen``;
        ``masked``; ``notes``.
    """
    table, names = out.data.table, list(out.confidence)
    answer_names = [*out.of_answers, *(name for name in _ALSO_FOR_ANSWERS if name in names)]
    pairs = [(BEST, name) for name in names if _kind(name) == "baseline"]
    pairs += [(name, "constant") for name in PROBES if name in names]
    return {
        **record_header(out.data.store, table, seed, n_resamples),
        "folds": n_folds,
        "n_questions": len(out.questions),
        "n_answers": int(table.known[out.questions].sum()),
        "accuracy": float(np.mean(table.accuracy[out.questions])),
        "methods": {name: _method(out, name, n_resamples, seed) for name in names},
        "on_half": {BEST: figures(out, BEST, True, n_resamples, seed)},
        "answers": {name: answer_figures(out, name, n_resamples, seed) for name in answer_names},
        "tests": paired_tests(out, pairs, 5 * n_resamples, seed),
        "chosen": out.chosen,
        "masked": out.masked,
        "notes": out.notes,
    }


def _kind(name: str) -> str:
    return "chosen" if name == BEST else "probe" if name in PROBES else "baseline"


def _method(out: OutOfFold, name: str, n_resamples: int, seed: int) -> dict[str, Any]:
    """Metrics of a method, and the mean number of tokens per question that the answering model reads and writes."""
    prompt_tokens = out.data.table.prompt_tokens
    nothing = np.zeros_like(prompt_tokens)
    # a probe reads the prompt; `text_embedding` has an encoder of its own that reads the question
    cost = (nothing if _kind(name) == "baseline" else prompt_tokens, nothing)
    if name in BASELINES:
        cost = cost_of(name, out.data)
    n_read, n_written = (float(tokens[out.questions].mean()) for tokens in cost)
    return {
        "kind": _kind(name),
        "half": is_half(name),
        "tokens_read": None if math.isnan(n_read) else n_read,
        "tokens_written": None if math.isnan(n_written) else n_written,
        **figures(out, name, is_half(name), n_resamples, seed),
    }


def cheap_baselines(record: dict[str, Any]) -> list[str]:
    """Baselines that are known to cost no more tokens, read and written together, than the chosen probe."""

    def cost(figures: dict[str, Any], unknown: float) -> float:
        tokens = figures["tokens_read"], figures["tokens_written"]
        return float(sum(unknown if count is None else count for count in tokens))

    methods = record["methods"]
    budget = cost(methods[BEST], 0) + 1e-9
    baselines = [name for name, figures in methods.items() if figures["kind"] == "baseline"]
    return [name for name in baselines if cost(methods[name], math.inf) <= budget]


def predictions(out: OutOfFold) -> pa.Table:
    """One row per question: its fold, counts, and the out-of-fold confidence of every method, null for none."""
    table, rows = out.data.table, out.questions

    def confidences(values: Tensor) -> pa.Array:
        return pa.array(values[rows].numpy(), from_pandas=True)

    return pa.table(
        {
            "question_id": [table.ids[row] for row in rows.tolist()],
            "group": [table.groups[row] for row in rows.tolist()],
            "fold": out.fold[rows].tolist(),
            **{name: getattr(table, name)[rows].tolist() for name in ("right", "known", "held_right", "held_known")},
            **{name: confidences(values) for name, values in out.confidence.items()},
        }
    )
