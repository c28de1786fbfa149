"""Compare the best probe with other methods on the six evaluation sets, and measure the default probe's stability.

Stability is the standard deviation of the AUROC over 10 random splits into inner folds. For sets with few right
answers, the mean and minimum Brier skill over 20 random splits into outer folds are also given.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor

from benchmarks.evaluation_sets import available, make
from benchmarks.published_recipe import published_recipe
from benchmarks.result import report
from datamodules import FeatureDataModule
from datamodules.splits import LEAST_VALIDATION
from extract.commands import ask
from probes.comparison.folds import fit, folds
from probes.comparison.out_of_fold import BEST, Comparison
from probes.comparison.record import paired_tests, scored
from probes.metrics.functional import brier_skill, capability_auroc
from probes.registry import METHODS, PROBES

#: Probes that are fitted in closed form.
FAMILIES = ("layer_average", "logistic", "ridge", "difference_of_means")
#: Baselines with which the best probe is compared. The last three use five answers.
BASELINES = ("text_embedding", "published_recipe", "consistency", "semantic_entropy", "mean_nll")
RECIPE = "published_recipe"
#: Mean accuracy below which the Brier skill is measured for several splits into outer folds.
RARE = 0.1


def differences(store: str) -> dict[str, Any]:
    """Return the differences in AUROC between the best probe and the other methods."""
    comparison = Comparison(store, probes=FAMILIES)
    out = comparison.run()
    out.confidence[RECIPE] = published_recipe(comparison)
    names = [name for name in (*BASELINES, *FAMILIES) if name in out.confidence]
    tests = [test for test in paired_tests(out, [(BEST, name) for name in names]) if test["metric"] == "auroc"]
    one = scored(out, BEST, half=False)
    return {
        "n_questions": len(out.questions),
        "accuracy": float((one.right / one.known).mean()),
        "auroc": float(capability_auroc(one.confidence, one.right, one.known, strata=one.fold)),
        "chosen": [choice["probe"] for choice in out.chosen],
        "minus": {test["b"]: {key: test[key] for key in ("value", "low", "high", "p_holm")} for test in tests},
    }


def out_of_fold(data: FeatureDataModule, outer_seed: int, inner_seed: int) -> tuple[float, float]:
    """Return the out-of-fold AUROC and Brier skill of the default probe for one split into folds."""
    data.load()
    data.split_seed = inner_seed
    every = data.every()
    confidence, reference, fold = (torch.full((len(data.table.ids),), torch.nan).double() for _ in range(3))
    for number, rows in enumerate(folds(data.table, every.question, 5, outer_seed, LEAST_VALIDATION)):
        data.use_split({split: part.tolist() for split, part in rows.items()})
        test, train = data.batch("test"), data.batch("train", "val")
        confidence[test.row] = fit(METHODS["layer_average"].load(), data, 1, 0).predict(test.features).double()
        reference[test.row] = float((train.right / train.known).mean())
        fold[test.row] = number
    counts: tuple[Tensor, Tensor] = (every.right, every.known)
    auroc = capability_auroc(confidence[every.row], *counts, strata=fold[every.row].long())
    return float(auroc), float(brier_skill(confidence[every.row], *counts, reference=reference[every.row]))


def main() -> None:
    """Print one line per evaluation set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", nargs="+", default=available())
    parser.add_argument("--inner", type=int, default=10, help="number of random splits into inner folds")
    parser.add_argument("--outer", type=int, default=20, help="number of random splits into outer folds")
    options = parser.parse_args()
    assert set(FAMILIES) <= set(PROBES)
    for name in options.sets:
        store = make(name)
        ask(store, ["text_embedding"])
        found, data = differences(store), FeatureDataModule(store)
        inner = torch.tensor([out_of_fold(data, 0, seed)[0] for seed in range(options.inner)])
        n_outer = options.outer if found["accuracy"] < RARE else 1
        skill = torch.tensor([out_of_fold(data, seed, 0)[1] for seed in range(n_outer)])
        report(
            f"evaluation: {name}",
            {**found, "auroc_sd": float(inner.std()), "skill": float(skill.mean()), "worst_skill": float(skill.min())},
            "AUROC: not below the text embedding and the published recipe; SD ≤ 0.006; mean skill ≥ 0, worst ≥ −0.05",
            all(found["minus"][rival]["high"] >= 0 for rival in ("text_embedding", RECIPE))
            and float(inner.std()) <= 0.006
            and float(skill.mean()) >= 0
            and float(skill.min()) >= -0.05,
        )


if __name__ == "__main__":
    main()
