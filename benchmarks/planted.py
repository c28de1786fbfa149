"""Test the probes on a planted direction, which they must find, and on pure noise, where they must find nothing.

Planted direction: the log-odds of a question's accuracy are a linear function of one layer. The reported value is the
normalised AUROC (2A − 1) / (2A_max − 1). A is the AUROC of a probe, and A_max is that of the true accuracies.

Noise: the accuracies are independent of the features. The reported value is the fraction of simulations in which no
probe is significantly better than the `constant` baseline. AUROC and Brier score are tested at 5 %, each with
Holm's correction over all probes.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.result import report
from probes.comparison.out_of_fold import BEST, Comparison
from probes.comparison.record import paired_tests, scored
from probes.metrics.functional import capability_auroc
from tests.helpers.synthetic import make_store

PROBES = ("layer_average", "linear", "logistic", "ridge", "difference_of_means", "counts", "mlp", "knn")


def planted(folder: Path, n: int, seed: int) -> dict[str, float]:
    """Return the normalised AUROC of every probe on features with a planted direction."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 4, 32)).astype(np.float32)
    direction = rng.normal(size=32)
    accuracy = 1 / (1 + np.exp(-2 * features[:, 2] @ direction / np.linalg.norm(direction)))
    make_store(folder, features, accuracy, seed=seed)
    out = Comparison(str(folder), probes=PROBES, seed=seed).run()
    one = scored(out, BEST, half=False)
    truth = torch.from_numpy(accuracy)[out.questions]
    best_possible = float(capability_auroc(truth, one.right, one.known, strata=one.fold))
    found = {}
    for name in (*PROBES, BEST):
        method = scored(out, name, half=False)
        auroc = float(capability_auroc(method.confidence, method.right, method.known, strata=method.fold))
        found[name] = (2 * auroc - 1) / (2 * best_possible - 1)
    return found


def lost(comparison: Comparison, seed: int, k: int) -> bool:
    """Return whether any probe is significantly better than the `constant` baseline on newly drawn accuracies."""
    rng = np.random.default_rng(seed)
    table = comparison.data.table
    right = rng.binomial(k, rng.beta(1.0, 1.5, size=len(table.ids)))
    comparison.seed = seed
    comparison.use_table(replace(table, right=right, known=np.full_like(right, k)))
    out = comparison.run()
    tests = paired_tests(out, [(name, "constant") for name in PROBES], 2000, seed)
    better = {"auroc": 1, "brier": -1}
    return any(
        row["p_holm"] is not None and row["p_holm"] < 0.05 and row["value"] * better[row["metric"]] > 0 for row in tests
    )


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=200)
    parser.add_argument("--questions", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)  # faster for many small problems
    with tempfile.TemporaryDirectory() as folder:
        found = planted(Path(folder) / "planted", 600, seed=0)
        rng = np.random.default_rng(1)
        features = rng.normal(size=(options.questions, 3, 16)).astype(np.float32)
        make_store(Path(folder) / "noise", features, np.full(options.questions, 0.4))
        comparison = Comparison(str(Path(folder) / "noise"), probes=PROBES, n_folds=3)
        n_lost = sum(lost(comparison, seed, k=10) for seed in range(options.simulations))
    kept = 1 - n_lost / options.simulations
    report(
        "planted",
        {"normalised AUROC": found, "noise: none above the constant": kept},
        "the probe that validation chose ≥ 0.95; none above in ≥ 93 % of the simulations",
        found[BEST] >= 0.95 and kept >= 0.93,
        n_questions=[600, options.questions],
        simulations=options.simulations,
    )


if __name__ == "__main__":
    main()
