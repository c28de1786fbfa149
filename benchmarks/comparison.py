"""Make the pages in docs/comparison/, which compare all methods out of fold on the six evaluation sets.

Missing data are added to the stores. Evaluation sets whose source files do not exist are skipped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.evaluation_sets import available, make
from benchmarks.result import report
from extract.commands import ask, read
from probes.commands import compare, transfer
from probes.comparison.out_of_fold import BEST
from probes.comparison.record import cheap_baselines
from probes.metrics.functional import capability_auroc
from probes.metrics.intervals import resample_weights

PAGES = Path(__file__).parents[1] / "docs" / "comparison"
ASKED = {"facts": ("verbalized", "p_true", "p_true_answer", "text_embedding"), "other": ("p_true", "text_embedding")}
#: Layers of the hidden states of answers.
ANSWER_LAYERS = (6, 12, 18, 24, 30)


def complete(name: str, store: str) -> None:
    """Add the missing signals and model-based baselines to a store."""
    read(store, ["tokens"])
    if name == "facts":
        read(store, ["hidden", "tokens"], "sample", ANSWER_LAYERS)
    ask(store, ASKED.get(name, ASKED["other"]))


def page(folder: Path, name: str, kind: str) -> None:
    """Save a page and its plots in docs/comparison/."""
    PAGES.mkdir(exist_ok=True)
    text = (folder / f"{kind}.md").read_text(encoding="utf-8")
    for picture in sorted((folder / "plots").glob("*.png")):
        kept = f"{name}-{picture.name}"
        shutil.copy(picture, PAGES / kept)
        text = text.replace(f"plots/{picture.name}", kept)
    (PAGES / f"{name}.md").write_text(text, encoding="utf-8")


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """Compare the chosen probe with all baselines of equal or lower token cost. P-values are Holm-corrected."""
    cheap = cheap_baselines(record)
    rows = [row for row in record["tests"] if row["a"] == BEST and row["b"] in cheap]
    return {
        f"{row['metric']} − {row['b']}": {"value": row["value"], "low": row["low"], "high": row["high"]} for row in rows
    } | {"largest p (AUROC)": max(row["p_holm"] for row in rows if row["metric"] == "auroc")}


def aurocs(folder: Path, methods: list[str], n_resamples: int) -> Tensor:
    """Return AUROCs [1 + n_resamples, method] on the answers with odd indices. The first row is not resampled."""
    table = pq.read_table(folder / "predictions.parquet")
    right, known, fold = (torch.tensor(table[name].to_pylist()) for name in ("held_right", "held_known", "fold"))
    usable = known > 0
    resamples = resample_weights(int(usable.sum()), n_resamples, 0)
    weights = torch.cat([torch.ones_like(resamples[:1]), resamples])
    columns = [torch.tensor(table[name].to_pylist(), dtype=torch.float64)[usable] for name in methods]
    counts = right[usable].double(), known[usable].double()
    return torch.stack(
        [capability_auroc(column, *counts, weights=weights, strata=fold[usable]) for column in columns], 1
    )


def summary(folders: dict[str, Path], n_resamples: int) -> str:
    """Return a page with each method's AUROC on every set, and its mean rank. Only answers with odd indices count."""
    shared = set.intersection(
        *(set(pq.read_schema(folder / "predictions.parquet").names) for folder in folders.values())
    )
    columns = pq.read_schema(next(iter(folders.values())) / "predictions.parquet").names
    methods = [name for name in columns[columns.index("held_known") + 1 :] if name in shared]
    found = {name: aurocs(folder, methods, n_resamples) for name, folder in folders.items()}
    ranks = (
        torch.stack([1 + (values[:, None] > values[:, :, None]).sum(2) for values in found.values()]).float().mean(0)
    )
    low, high = ranks[1:].quantile(torch.tensor([0.025, 0.975]), dim=0)
    rows = ["| method | " + " | ".join(found) + " | mean rank |", "|---" * (len(found) + 2) + "|"]
    for i in ranks[0].argsort().tolist():
        values = " | ".join(f"{float(values[0, i]):.3f}" for values in found.values())
        rows.append(f"| `{methods[i]}` | {values} | {ranks[0, i]:.1f} [{low[i]:.1f}, {high[i]:.1f}] |")
    return "\n".join(
        [
            f"# Comparison on {len(found)} sets\n",
            "This table shows the out-of-fold AUROC of every method that was evaluated on all sets. All methods are",
            "scored on the same half of the answers. On each set, the method with the highest AUROC has rank 1. The",
            "last column shows the mean rank over the sets, with a 95 % bootstrap interval.\n",
            *rows,
            "\n" + "Details for each set: " + ", ".join(f"[{name}]({name}.md)" for name in found) + ".",
            "",
        ]
    )


def main() -> None:
    """Write the comparison pages, and print the chosen probe's lead over each baseline of equal or lower token cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n_resamples", type=int, default=2000)
    parser.add_argument(
        "--probes",
        nargs="+",
        help="probes to compare on every set except `facts`, which always uses all probes (default: all probes)",
    )
    options = parser.parse_args()
    stores = {name: make(name) for name in available()}
    values, folders = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, store in stores.items():
            complete(name, store)
            probes = None if name == "facts" else options.probes
            folder = compare(store, str(Path(scratch) / name), probes, n_resamples=options.n_resamples)
            page(folder, name, "comparison")
            folders[name] = folder
            values[name] = verdict(json.loads((folder / "comparison.json").read_text(encoding="utf-8")))
        (PAGES / "summary.md").write_text(summary(folders, options.n_resamples), encoding="utf-8")
        kinds = transfer([stores["facts"]], str(Path(scratch) / "kinds"), n_resamples=options.n_resamples)
        page(kinds, "facts-transfer", "transfer")
        sets = [stores[name] for name in ("facts", "arithmetic", "mmlu", "qa_wikidata") if name in stores]
        if len(sets) > 1:
            page(
                transfer(sets, str(Path(scratch) / "sets"), n_resamples=options.n_resamples),
                "sets-transfer",
                "transfer",
            )
    report(
        "comparison",
        values,
        "the chosen probe has a higher AUROC than every baseline of equal or lower token cost, on every set",
        all(value["largest p (AUROC)"] < 0.05 for value in values.values()),
    )


if __name__ == "__main__":
    main()
