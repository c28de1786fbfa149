"""Metrics that compare confidences with measured accuracies, as pure tensor functions.

The functions share these arguments:

- `preds` [question]: confidences or scores. Higher means that an answer is more likely to be right.
- `right` [question]: number c of right answers to each question.
- `known` [question]: number n ≥ 1 of graded answers to each question. The measured accuracy is p̂ = c/n.
- `weights` [..., question]: number of copies of each question, 1 by default. The leading axes are resamples.

Results have the shape [...] and the dtype float64. Unbiased estimates require that `preds` do not depend on the answers
counted in `right`. To evaluate confidences in individual answers, pass one row per answer with `known` = 1.
"""

from probes.metrics.functional.binned import bin_index, expected_calibration_error, rmsce, squared_calibration_error
from probes.metrics.functional.brier import brier_skill, brier_terms, debiased_brier, response_brier
from probes.metrics.functional.ranking import auroc_ceiling, capability_auroc, hard_auroc, spearman
from probes.metrics.functional.selective import auprc, aurc, e_aurc, prediction_rejection_ratio, recall_at_fpr

__all__ = [
    "auprc",
    "aurc",
    "auroc_ceiling",
    "bin_index",
    "brier_skill",
    "brier_terms",
    "capability_auroc",
    "debiased_brier",
    "e_aurc",
    "expected_calibration_error",
    "hard_auroc",
    "prediction_rejection_ratio",
    "recall_at_fpr",
    "response_brier",
    "rmsce",
    "spearman",
    "squared_calibration_error",
]
