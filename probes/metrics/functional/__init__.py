"""Metrics of a confidence against measured accuracy, as pure tensor functions.

All take `preds` [question], the confidence or score, higher = more likely right; `right` and `known` [question], the
right answers c and the graded answers n ≥ 1; and `weights` [..., question], how often each question counts (all once
when left out). Extra leading axes of `weights` are resamples: a metric comes back for each of them. Computed in
float64. The estimators are unbiased for the true accuracies p when preds don't depend on the samples that gave c.

Where single answers have confidences of their own, a row is an answer with `known` 1, and the same functions give the
figures against single answers; `probes.metrics.intervals.by_question` resamples such rows with their questions.
"""

from probes.metrics.functional.binned import (
    bin_index,
    expected_calibration_error,
    rmsce,
    squared_calibration_error,
)
from probes.metrics.functional.brier import brier_skill, brier_terms, debiased_brier, response_brier
from probes.metrics.functional.ceiling import auroc_ceiling
from probes.metrics.functional.inputs import midranks
from probes.metrics.functional.ranking import aurc, capability_auroc, hard_auroc, spearman

__all__ = [
    "aurc",
    "auroc_ceiling",
    "bin_index",
    "brier_skill",
    "brier_terms",
    "capability_auroc",
    "debiased_brier",
    "expected_calibration_error",
    "hard_auroc",
    "midranks",
    "response_brier",
    "rmsce",
    "spearman",
    "squared_calibration_error",
]
