"""Build the record, the table and the Markdown page for certified thresholds."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from applications.confidences import named_confidences
from applications.decisions.learn_then_test import (
    certify,
    n_needed,
    necessary_abstention,
    oracle_coverage,
)
from applications.decisions.splits import split_record
from applications.intervals import Estimate, estimate, mean_of
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.store.store import Store
from probes.report.results import record_header
from probes.report.templates import method_label, render

Array = NDArray[np.float64]
LEAST_QUESTIONS = 20
_N_POINTS = 40


class Decided(NamedTuple):
    """Questions in a store that have a known grade and a confidence from every source.

    `rows` contains their row indices in the question table `table`.
    """

    store: Store
    table: QuestionTable
    rows: NDArray[np.int64]
    confidences: dict[str, Array]

    @property
    def losses(self) -> Array:
        """Fractions of wrong answers, [question]."""
        return 1 - self.table.accuracy[self.rows]


def check_requests(risks: Sequence[float], level: float) -> None:
    """Check the `risk` and `level` options."""
    if not risks or len(set(risks)) < len(risks) or not all(0 < risk < 1 for risk in risks):
        raise InputError(
            f"Expected `risk` to contain distinct numbers between 0 and 1, but got {list(risks)}. Pass the largest "
            "acceptable fraction of wrong answers, such as 0.2."
        )
    if not 0 < level < 1:
        raise InputError(f"Expected `level` to be between 0 and 1, but got {level}. Pass 0.9, for example.")


def read_questions(store: Store, table: QuestionTable, sources: Sequence[str]) -> Decided:
    """Read the confidences of the questions that have a known grade."""
    found = named_confidences(sources, store, reserved=[])
    if not found:
        raise InputError(
            "Expected `confidences` to contain at least one source, but it is empty. Pass the out-of-fold predictions "
            "of `python -m probes compare` as FILE:COLUMN."
        )
    rows = np.flatnonzero((table.known > 0) & np.isfinite(np.array(list(found.values()))).all(0))
    if len(rows) < LEAST_QUESTIONS:
        raise InputError(
            f"Expected at least {LEAST_QUESTIONS} questions with a known grade and a confidence, but got {len(rows)}. "
            "Sample answers to more questions."
        )
    return Decided(store, table, rows, {name: values[rows] for name, values in found.items()})


def decide_record(
    decided: Decided, risks: Sequence[float], level: float, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Compute the content of decide.json.

    The entry `confidences` maps each source to its risk–coverage `curve` and the results of `threshold_record`. For
    each target risk, the entry `requests` contains the results that do not depend on the confidences. The entry
    `routing` is None until the command sets it.
    """
    losses, options = decided.losses, {"n_resamples": n_resamples, "seed": seed}
    n, table = len(losses), decided.table
    base = estimate(mean_of(losses), n, **options)
    return {
        **record_header(decided.store, table, seed, n_resamples),
        "n_questions": n,
        "n_answers": int(table.known[decided.rows].sum()),
        "n_without_grade": int((table.known == 0).sum()),
        "n_without_confidence": int((table.known > 0).sum()) - n,
        "level": level,
        "routing": None,
        "base_risk": base,
        "requests": [
            {
                "risk": risk,
                "n_needed": n_needed(risk, level),
                "necessary_abstention": necessary_abstention(base["value"], risk),
                "oracle_coverage": oracle_coverage(losses, risk),
            }
            for risk in risks
        ],
        "confidences": {
            name: {
                "curve": risk_coverage(values, losses, **options),
                "thresholds": [threshold_record(values, losses, risk, level, **options) for risk in risks],
            }
            for name, values in decided.confidences.items()
        },
    }


def threshold_record(
    confidence: Array, losses: Array, risk: float, level: float, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Certify a threshold for one target risk, and measure its coverage and risk.

    Returns:
        A dict with these entries:

        - `risk`: The target risk.
        - `threshold`: The certified threshold, or None.
        - `coverage`: Coverage at the threshold; None without a threshold.
        - `n_kept`: Number of questions at or above the threshold.
        - `measured_risk`: Measured risk at the threshold, or at `first` if no threshold is certified.
        - `first`: The highest tested threshold.
        - `hoeffding`: Coverage at the threshold that Hoeffding's test certifies.
        - `n_least`: Number of questions at or above `first`.
        - `lowest`: Result of `lowest_risk` for `n_least`.
        - `splits`: Result of `split_record`.
    """
    found = certify(confidence, losses, risk, level, seed)
    shown = found.first if found.threshold is None else found.threshold
    is_kept, n_least = confidence >= shown, int((confidence >= found.first).sum())
    return {
        "risk": risk,
        "threshold": found.threshold,
        "coverage": share(is_kept, n_resamples, seed) if found.threshold is not None else None,
        "n_kept": found.n_kept,
        "measured_risk": estimate(mean_of(losses[is_kept]), int(is_kept.sum()), n_resamples, seed),
        "first": found.first,
        "hoeffding": certify(confidence, losses, risk, level, seed, test="hoeffding").n_kept / len(losses),
        "n_least": n_least,
        "lowest": lowest_risk(confidence, losses, n_least),
        "splits": split_record(confidence, losses, risk, level, seed),
    }


def share(is_member: NDArray[np.bool_], n_resamples: int, seed: int) -> Estimate:
    """Compute the fraction of True values in a mask [question], with its bootstrap interval."""
    return estimate(mean_of(is_member.astype(np.float64)), len(is_member), n_resamples, seed)


def lowest_risk(confidence: Array, losses: Array, n_least: int) -> float:
    """Return the lowest mean loss of the m most confident questions, over all m ≥ `n_least`."""
    means = losses[np.argsort(-confidence, kind="stable")].cumsum() / np.arange(1, len(losses) + 1)
    return float(means[n_least - 1 :].min())


def risk_coverage(confidence: Array, losses: Array, n_resamples: int, seed: int) -> list[dict[str, Any]]:
    """Compute points of the risk–coverage curve: `threshold`, `coverage`, and `risk` with its interval."""
    points, before = [], 0
    for quantile in np.linspace(1, 0, _N_POINTS, endpoint=False)[::-1]:
        threshold = np.sort(confidence)[::-1][int(np.ceil(quantile * len(losses))) - 1]
        is_kept = confidence >= threshold
        if is_kept.sum() > before:
            before = int(is_kept.sum())
            risk = estimate(_mean_of_kept(losses, is_kept), len(losses), n_resamples, seed)
            points.append({"threshold": float(threshold), "coverage": before / len(losses), "risk": risk})
    return points


def _mean_of_kept(losses: Array, is_kept: NDArray[np.bool_]) -> Any:
    above, below = torch.from_numpy(losses * is_kept), torch.from_numpy(is_kept.astype(np.float64))
    return lambda weights: (weights @ above) / (weights @ below)


def decide_table(decided: Decided, record: Mapping[str, Any]) -> pa.Table:
    """Return a table with one row per question."""
    table, rows = decided.table, decided.rows
    columns: dict[str, Any] = {
        "question_id": [table.ids[row] for row in rows],
        "right": table.right[rows],
        "known": table.known[rows],
        **decided.confidences,
    }
    for name, found in record["confidences"].items():
        for one in found["thresholds"]:
            threshold = np.inf if one["threshold"] is None else one["threshold"]
            columns[f"{name}_kept_{one['risk']:g}"] = decided.confidences[name] >= threshold
    return pa.table(columns)


def decide_page(record: Mapping[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    context = {"label_of": method_label, "verdict": decide_verdict(record), "plots": plots}
    return render("decisions/decide.md.j2", record=record, **context)


def decide_verdict(record: Mapping[str, Any]) -> str:
    """Return a summary of the thresholds."""
    return render("decisions/verdict.md.j2", record=record, label_of=method_label)
