"""Record and Markdown page of a comparison."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from probes.baselines.registry import BASELINES, cost_of, counts, is_half
from probes.comparison.out_of_fold import BEST, OutOfFold
from probes.metrics import functional
from probes.metrics.significance import add_holm
from probes.registry import PROBES, chosen_option
from probes.report.evaluate import Scored, common_rows, difference, evaluate
from probes.report.results import record_header
from probes.report.templates import COLUMNS, render

_KINDS = ("chosen", "probe", "baseline")


def comparison_record(out: OutOfFold, n_folds: int, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the metrics and tests of a comparison.

    Args:
        n_resamples: Number of resamples for each interval. Each p-value uses five times as many draws.

    Returns:
        The content of comparison.json. `methods` contains the metrics of each method. Methods that use answers with
        even indices are scored on answers with odd indices. All other methods are scored on all answers. `on_half`
        contains the metrics of the best probe on answers with odd indices. `answers` contains metrics on individual
        answers. `tests` is the result of `paired_tests`. `chosen`, `masked` and `notes` come from `OutOfFold`.
    """
    table, names = out.data.table, list(out.confidence)
    answer_names = [*out.of_answers, *(name for name in ("constant", "base_rate", BEST) if name in names)]
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
        "tests": paired_tests(out, pairs, n_resamples, seed),
        "chosen": out.chosen,
        "masked": out.masked,
        "notes": out.notes,
    }


def _kind(name: str) -> str:
    return "chosen" if name == BEST else "probe" if name in PROBES else "baseline"


def _method(out: OutOfFold, name: str, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute a method's metrics, and the mean numbers of tokens read and written per question."""
    prompt_tokens = out.data.table.prompt_tokens
    nothing = np.zeros_like(prompt_tokens)
    if name in BASELINES:
        cost = cost_of(name, out.data)
    else:  # a probe reads the prompt; for `text_embedding` a separate encoder reads the question
        cost = (nothing if _kind(name) == "baseline" else prompt_tokens, nothing)
    n_read, n_written = (float(tokens[out.questions].mean()) for tokens in cost)
    return {
        "kind": _kind(name),
        "half": is_half(name),
        "tokens_read": None if math.isnan(n_read) else n_read,
        "tokens_written": None if math.isnan(n_written) else n_written,
        **figures(out, name, is_half(name), n_resamples, seed),
    }


def cheap_baselines(record: dict[str, Any]) -> list[str]:
    """Return the baselines that are known to use no more tokens than the best probe."""
    methods = record["methods"]

    def cost(name: str, unknown: float) -> float:
        tokens = methods[name]["tokens_read"], methods[name]["tokens_written"]
        return float(sum(unknown if count is None else count for count in tokens))

    baselines = [name for name, figures in methods.items() if figures["kind"] == "baseline"]
    return [name for name in baselines if cost(name, math.inf) <= cost(BEST, 0) + 1e-9]


def predictions(out: OutOfFold) -> pa.Table:
    """Return a table of the tested questions with their folds, grades and confidences (null if missing)."""
    table, rows = out.data.table, out.questions
    return pa.table(
        {
            "question_id": [table.ids[row] for row in rows.tolist()],
            "group": [table.groups[row] for row in rows.tolist()],
            "fold": out.fold[rows].tolist(),
            **{name: getattr(table, name)[rows].tolist() for name in ("right", "known", "held_right", "held_known")},
            **{name: pa.array(values[rows].numpy(), from_pandas=True) for name, values in out.confidence.items()},
        }
    )


def scored(out: OutOfFold, name: str, half: bool) -> Scored:
    """Return confidences and grades of the tested questions. If `half` is true, only answers with odd indices count."""
    right, known = counts(out.data.table, half)
    rows = out.questions
    return Scored(out.confidence[name][rows], right[rows], known[rows], fold=out.fold[rows])


def figures(out: OutOfFold, name: str, half: bool, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the question-level metrics of a method with `evaluate`, and add `response_brier` and `gap`.

    `response_brier` is the Brier score on individual answers. `gap` is `response_brier` minus the debiased Brier score.
    The gap estimates the mean of p(1−p), where p is the true accuracy.
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
    """Compute a method's metrics on individual answers. A question's confidence applies to all its answers."""
    answers = out.data.table.answers
    question, right, known = (torch.from_numpy(column) for column in (answers.question, answers.right, answers.known))
    tested = out.fold[question] >= 0
    rows = (known.bool() & tested).nonzero()[:, 0]
    confidence = out.of_answers[name] if name in out.of_answers else out.confidence[name][question]
    method = Scored(confidence[rows], right[rows], known[rows], question[rows], out.fold[question[rows]])
    return evaluate(method, int(((1 - known) * tested).sum()), 0.5, n_resamples, seed)


def paired_tests(
    out: OutOfFold, pairs: Sequence[tuple[str, str]], n_resamples: int = 2000, seed: int = 0
) -> list[dict[str, Any]]:
    """Test paired differences between methods. The Holm correction covers all tests of the same metric.

    Args:
        pairs: Names (a, b) of the two methods in each test.
        n_resamples: Number of resamples for each interval. Each p-value uses five times this number of resamples or
            sign flips; see `difference`.

    Returns:
        One dict for each pair and metric whose difference is defined. `value` is the difference a − b, and `p_holm` is
        the corrected p-value. `half` is true if only answers with odd indices are included.
    """
    tests: list[dict[str, Any]] = []
    for a, b in pairs:
        half = is_half(a) or is_half(b)
        first, second = common_rows(scored(out, a, half), scored(out, b, half))
        for metric in ("auroc", "brier"):
            test = difference(first, second, metric, n_resamples, seed, n_draws=5 * n_resamples)
            if test is not None:
                names = {"a": a, "b": b, "metric": metric, "half": half}
                tests.append({**names, "n_questions": first.n_questions, **test})
    for metric in ("auroc", "brier"):
        add_holm([test for test in tests if test["metric"] == metric])
    return tests


def comparison_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the record of a comparison as a Markdown page. `plots` contains the names of the plots."""
    methods = dict(sorted(record["methods"].items(), key=lambda item: _KINDS.index(item[1]["kind"])))
    of_half = {name: figures for name, figures in methods.items() if figures["half"]}
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for test in record["tests"]:
        pairs.setdefault((test["a"], test["b"]), {"half": test["half"]})[test["metric"]] = test
    return render(
        "comparison/comparison.md.j2",
        record=record,
        best=BEST,
        columns=[column for column in COLUMNS if column[0] != "auroc_hard"],
        verdict=comparison_verdict(record),
        all_answers={name: figures for name, figures in methods.items() if not figures["half"]},
        half_answers={BEST: methods[BEST] | record["on_half"][BEST], **of_half},
        pairs=pairs,
        chosen_option=chosen_option,
        plots=plots,
    )


def comparison_verdict(record: dict[str, Any]) -> str:
    """Describe the results of the best probe and its differences from `cheap_baselines`."""
    tests = {(test["b"], test["metric"]): test for test in record["tests"] if test["a"] == BEST}
    chosen = Counter(fold["probe"] for fold in record["chosen"]).most_common()
    context: dict[str, Any] = {"baselines": cheap_baselines(record), "tests": tests, "chosen": chosen}
    return render("comparison/verdict.md.j2", record=record, best=BEST, **context)
