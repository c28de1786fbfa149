"""How well the probe does on the default store: 5 folds outside, layer and L2 chosen inside, pooled out of fold.

Makes the default store where it is missing. The same with the labels shuffled over the questions must give one half.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import lightning as L
import numpy as np
import torch
from torch import Tensor

from benchmarks.result import report
from datamodules import FeatureDataModule
from datamodules.splits import split_questions
from extract.cli import OneLineParser
from extract.recipe import StoreRecipe
from probes.baselines import BASELINES, HALF_SAMPLE, Scored, scored
from probes.evaluate import compare
from probes.functional import capability_auroc, debiased_brier
from probes.intervals import bootstrap
from probes.linear import Linear

FOLDS = 5


def default_data() -> FeatureDataModule:
    """The datamodule of configs/default.yaml."""
    import yaml

    options = yaml.safe_load(Path(__file__).parents[1].joinpath("configs/default.yaml").read_text(encoding="utf-8"))[
        "data"
    ]
    parser = OneLineParser(exit_on_error=False)
    parser.add_class_arguments(StoreRecipe, "recipe")
    options["recipe"] = parser.instantiate(parser.parse_object({"recipe": options["recipe"]})).recipe
    data = FeatureDataModule(**options)
    data.prepare_data()
    data.setup()
    return data


def out_of_fold(data: FeatureDataModule, seed: int) -> dict[str, Tensor]:
    """Confidences [question] of the probe and of every baseline, each from the other folds."""
    table = data.table
    every = torch.cat(list(data.split_rows.values())).sort().values
    ids, groups = [table.ids[i] for i in every], [table.groups[i] for i in every]
    fold = torch.tensor(split_questions(ids, groups, [1 / FOLDS] * FOLDS, seed))
    pooled = {name: torch.full((len(table.ids),), torch.nan, dtype=torch.float64) for name in ("linear", *BASELINES)}
    for held_out in range(FOLDS):
        rest, test = every[fold != held_out], every[fold == held_out]
        inner = torch.tensor(
            split_questions([table.ids[i] for i in rest], [table.groups[i] for i in rest], [0.75, 0.25], seed + 1)
        )
        rows = {"train": rest[inner == 0], "val": rest[inner == 1], "test": test}
        data.use_split({name: chosen.tolist() for name, chosen in rows.items()})
        L.seed_everything(seed, verbose=False)
        module = Linear()
        trainer = L.Trainer(
            max_epochs=100,
            check_val_every_n_epoch=10,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, data)
        with torch.no_grad():
            pooled["linear"][test] = module.predict(data.batch("test").features).double()
        for name, baseline in BASELINES.items():
            pooled[name][test] = baseline(table, rows)[test]
    return pooled


def main() -> None:
    """Print AUROC, skill and the paired interval over the base rate, and the AUROC of shuffled labels."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*training batches.*")
    data = default_data()
    table, every = data.table, torch.cat(list(data.split_rows.values())).sort().values

    pooled = out_of_fold(data, seed)
    methods: dict[str, Scored] = {
        name: scored(table, confidence, every, name in HALF_SAMPLE) for name, confidence in pooled.items()
    }
    probe, reference = methods["linear"], methods["constant"]
    aurocs = {
        name: bootstrap(lambda w, m=m: capability_auroc(m.confidence, m.right, m.known, w), len(every))
        for name, m in methods.items()
    }

    def skill(weights: Tensor) -> Tensor:
        briers = [debiased_brier(m.confidence, m.right, m.known, weights) for m in (probe, reference)]
        return 1 - briers[0] / briers[1]

    skills = bootstrap(skill, len(every))
    over_base_rate = {
        row["metric"]: row for row in compare("linear", "base_rate", probe, methods["base_rate"], "out of fold", 0.5)
    }

    order = np.random.default_rng(seed).permutation(len(table.ids))
    data.use_table(replace(table, right=table.right[order], known=table.known[order]))
    shuffled = scored(data.table, out_of_fold(data, seed)["linear"], every, half=False)
    chance = bootstrap(lambda w: capability_auroc(shuffled.confidence, shuffled.right, shuffled.known, w), len(every))

    assert aurocs["linear"] is not None
    assert skills is not None
    assert chance is not None
    gain = over_base_rate["auroc"]
    holds = (
        aurocs["linear"]["value"] >= 0.66
        and skills["value"] >= 0.2
        and gain["low"] > 0
        and chance["low"] <= 0.5 <= chance["high"]
    )
    report(
        "quality",
        {
            "auroc": aurocs,
            "skill": skills,
            "auroc_over_base_rate": {key: gain[key] for key in ("value", "low", "high")},
            "auroc_of_shuffled_labels": chance,
        },
        "AUROC ≥ 0.66, skill ≥ 0.20, paired interval over the base rate above 0, shuffled labels within their interval of 0.5",
        holds,
        n_questions=len(every),
        seed=seed,
    )


if __name__ == "__main__":
    main()
