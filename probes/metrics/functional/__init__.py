"""Metrics of confidences against measured accuracies, as pure tensor functions.

All functions take:

- `preds` [question]: confidences or scores, higher = more likely right.
- `right` and `known` [question]: number c of right answers and n ≥ 1 of graded answers; p̂ = c/n.
- `weights` [..., question]: how often each question counts, 1 by default. Leading axes are resamples.

Results [...] are float64. The estimators are unbiased if `preds` do not depend on the answers counted in `right`.

To score confidences of single answers, pass one row per answer with `known` = 1.
`probes.metrics.intervals.by_question` resamples such rows together with their questions.
"""

from probes.metrics.functional.binned import bin_index, expected_calibration_error, rmsce, squared_calibration_error
from probes.metrics.functional.brier import brier_skill, brier_terms, debiased_brier, response_brier
from probes.metrics.functional.ranking import aurc, auroc_ceiling, capability_auroc, hard_auroc, spearman

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
    "response_brier",
    "rmsce",
    "spearman",
    "squared_calibration_error",
]
