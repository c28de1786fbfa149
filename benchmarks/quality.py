"""Evaluate the probe on the default store with nested cross-validation (5 outer folds).

As a check, the labels are also shuffled across questions. The interval for the AUROC must then contain 0.5.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import report
from datamodules import FeatureDataModule
from extract.recipe import StoreRecipe
from extract.running.cli import OneLineParser
from probes.comparison.out_of_fold import Comparison
from probes.comparison.record import scored
from probes.report.evaluate import compare, evaluate


def _options(config: str) -> dict[str, Any]:
    """Return the datamodule options from a file in configs/."""
    import yaml

    path = Path(__file__).parents[1] / "configs" / f"{config}.yaml"
    options: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["data"]
    return options


def recipe_of(config: str) -> StoreRecipe:
    """Return the recipe from a file in configs/, whose options override those of configs/default.yaml."""
    parser = OneLineParser(exit_on_error=False)
    parser.add_class_arguments(StoreRecipe, "recipe")
    options = parser.parse_object({"recipe": _options("default")["recipe"]})
    recipe: StoreRecipe = parser.instantiate(
        parser.parse_object({"recipe": _options(config)["recipe"]}, options)
    ).recipe
    return recipe


def default_data() -> FeatureDataModule:
    """Return the datamodule defined in configs/default.yaml."""
    data = FeatureDataModule(**{**_options("default"), "recipe": recipe_of("default")})
    data.prepare_data()
    data.setup()
    return data


def main() -> None:
    """Run the quality benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    comparison = Comparison(default_data().store_path, probes=["linear"], seed=seed)
    out = comparison.run()
    reference = scored(out, "constant", half=False).confidence
    linear, base_rate = (scored(out, name, half=False) for name in ("linear", "base_rate"))
    figures = evaluate(linear, 0, reference)
    pairs = compare("linear", "base_rate", linear, base_rate, "out of fold")
    gain = next(row for row in pairs if row["metric"] == "auroc")

    table = comparison.data.table
    order = np.random.default_rng(seed).permutation(len(table.ids))
    comparison.use_table(replace(table, right=table.right[order], known=table.known[order]))
    chance = evaluate(scored(comparison.run(), "linear", half=False), 0, reference)["auroc"]

    report(
        "quality",
        {
            "auroc": {"linear": figures["auroc"], "base_rate": evaluate(base_rate, 0, reference)["auroc"]},
            "skill": figures["brier_skill"],
            "auroc_over_base_rate": {key: gain[key] for key in ("value", "low", "high")},
            "auroc_of_shuffled_labels": chance,
        },
        "AUROC ≥ 0.66, skill ≥ 0.20, paired interval over the base rate above 0, shuffled labels within their interval of 0.5",
        figures["auroc"]["value"] >= 0.66
        and figures["brier_skill"]["value"] >= 0.2
        and gain["low"] > 0
        and chance["low"] <= 0.5 <= chance["high"],
        n_questions=len(out.questions),
        seed=seed,
    )


if __name__ == "__main__":
    main()
