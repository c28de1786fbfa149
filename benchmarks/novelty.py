"""Measure novelty and back-off on reworded test questions from `facts`, and on other kinds of questions.

There are 12 rewordings of each of 96 test questions, and 200 questions of other kinds. The probe is trained on the
default store. Back-off also uses a broader probe, whose training data include six other rewordings of each training and
validation question. There are two results:

- How well novelty separates a set (all questions of one rewording, or those of other kinds) from the test split: the
  lowest AUROC of any set.
- How much back-off reduces the calibration error (RMSCE): the ratio of the errors with and without back-off, for each
  set whose error without back-off is at least 0.1.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality import recipe_of
from benchmarks.result import report
from benchmarks.unfamiliar import reworded, unseen
from datamodules import FeatureDataModule
from datamodules.splits import split_questions
from extract.commands import make_store
from extract.questions.facts import facts
from extract.questions.rewording import reworded as reworded_for_training
from probes.comparison.folds import data_of, fit
from probes.fitting.backoff import backed_off, fit_novelty
from probes.metrics.functional import capability_auroc, debiased_brier, rmsce
from probes.registry import METHODS

N_QUESTIONS, LEAST_AUROC, LARGEST_RATIO = 96, 0.8, 0.6


def reworded_questions(data: FeatureDataModule) -> list[Any]:
    """Return 96 questions of the test split, stratified by group."""
    rows, of_id = data.question_rows["test"].tolist(), {question.id: question for question in facts()}
    ids, groups = ([column[row] for row in rows] for column in (data.table.ids, data.table.groups))
    part = split_questions(ids, groups, [N_QUESTIONS / len(rows), 1 - N_QUESTIONS / len(rows)], 0)
    return [of_id[id_] for id_, number in zip(ids, part, strict=True) if number == 0]


def loaded(name: str, records: Sequence[dict[str, Any]], probe: str) -> FeatureDataModule:
    """Sample and grade answers with the default policy, read the signals for `probe`, and return the datamodule."""
    method, store = METHODS[probe], f"stores/{name}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.jsonl"
        path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records), encoding="utf-8")
        make_store(store, replace(recipe_of("default"), questions=str(path)), "short", [method.signal, *method.join])
    data = data_of(method, store, "short")
    data.load()
    return data


def broader_store(data: FeatureDataModule, probe: str) -> str:
    """Create a store of rewordings of the training and validation questions."""
    of_id = {question.id: question for question in facts()}
    rows = torch.cat([data.question_rows["train"], data.question_rows["val"]]).tolist()
    questions = reworded_for_training([of_id[data.table.ids[row]] for row in rows])
    records = [
        {name: value for name, value in one.record().items() if value and name != "dataset"} for one in questions
    ]
    loaded("broader", records, probe)
    return "stores/broader"


def main() -> None:
    """Run the novelty benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", default="layer_average_tokens")
    parser.add_argument(
        "--no_broader", action="store_true", help="back off only towards the base rate, not towards a broader probe"
    )
    options = parser.parse_args()
    probe = options.probe
    method = METHODS[probe]
    make_store("stores/facts", recipe_of("default"), "short", [method.signal, *method.join])
    data = FeatureDataModule("stores/facts", join=list(method.join) or None, val_fraction=0.2, test_fraction=0.3)
    data.setup()
    if not options.no_broader:
        data.broader = [broader_store(data, probe)]
    module = fit(method.load(), data, method.epochs, 0)
    novelty, test = fit_novelty(module), data.batch("test")
    familiar = backed_off(module, novelty, test.features).novelty

    def figures(name: str, batch: Any) -> dict[str, Any]:
        found, raw = backed_off(module, novelty, batch.features), module.predict(batch.features)
        both = torch.cat([found.novelty, familiar]).double()
        is_other = torch.cat([torch.ones(len(found.novelty)), torch.zeros(len(familiar))])
        figure = {"set": name, "n": len(raw), "accuracy": float((batch.right / batch.known).mean())}
        figure["novelty_auroc"] = float(capability_auroc(both, is_other, torch.ones_like(is_other)))
        for how, confidence in (("raw", raw), ("backed_off", found.confidence)):
            counts: tuple[Tensor, Tensor] = (batch.right, batch.known)
            figure |= {
                f"rmsce_{how}": float(rmsce(confidence, *counts)),
                f"brier_{how}": float(debiased_brier(confidence, *counts)),
            }
        print(json.dumps(figure), flush=True)
        return figure

    figures("test split", test)
    found = list[dict[str, Any]]()
    for name, records in (("reworded", reworded(reworded_questions(data))), ("unseen", unseen())):
        of_set = loaded(name, records, probe)
        batch = of_set.every()
        groups = [of_set.table.groups[row] for row in batch.question.tolist()]
        every = figures(f"all of {name}", batch)
        of_group = [
            figures(group, batch.take(torch.tensor([one == group for one in groups])))
            for group in dict.fromkeys(groups)
        ]
        found += of_group if name == "reworded" else [every]  # the kinds are too small for calibration errors
    lowest = min(figure["novelty_auroc"] for figure in found)
    miscalibrated = [figure for figure in found if figure["rmsce_raw"] >= 0.1]
    ratios = {figure["set"]: figure["rmsce_backed_off"] / figure["rmsce_raw"] for figure in miscalibrated}
    report(
        "novelty",
        {"lowest_auroc": lowest, "rmsce_ratios": ratios},
        f"AUROC ≥ {LEAST_AUROC}; RMSCE ≤ {LARGEST_RATIO} of raw where raw ≥ 0.1",
        lowest >= LEAST_AUROC and max(ratios.values(), default=0.0) <= LARGEST_RATIO,
        probe=probe,
        backoff_weight=float(novelty.weight),
        broader_share=None if novelty.broader is None else float(novelty.broader.share),
    )


if __name__ == "__main__":
    main()
