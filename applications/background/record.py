"""Build the record, the Markdown page and the tables for an estimated background temperature."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from applications.background.estimation import LEVEL, Cell, Estimate, interval
from applications.background.matching import Array
from applications.background.outputs import Source
from applications.background.systems import References, Systems
from applications.background.variability import METRICS, Counted
from probes.metrics.intervals import Interval
from probes.report.results import FORMAT_VERSION, versions
from probes.report.templates import render

AUTHORS = [name for name, metric in METRICS.items() if metric.authors]


def background_record(
    tested: Source, references: References, systems: Systems, estimate: Estimate, n_resamples: int, seed: int
) -> dict[str, Any]:
    """Compute the content of background-temperature.json.

    If the tested system gives only one distinct output per prompt, the upper bound `high` of `temperature` comes from
    `_upper_limit`.
    """
    n, limit = len(systems.prompts), _upper_limit(estimate, references)
    sources = [tested, *(source for grid in references.values() for source in grid.values())]
    return {
        "format_version": FORMAT_VERSION,
        "identities": [source.store.sha256 for source in sources if source.store],
        "tested": {**_source(tested), **_facts(systems.tested)},
        "references": {
            name: {
                **_source(next(iter(grid.values()))),
                "name": name,
                "temperatures": [*grid],
                "n_outputs": min(one.n for outputs in systems.references[name].values() for one in outputs),
                "recovery": _recovery([*grid], estimate.recovery[name], n) if name in estimate.recovery else None,
            }
            for name, grid in references.items()
        },
        "n_prompts": n,
        "n_prompts_left_out": systems.n_unshared,
        "n_common": systems.n,
        "unit": systems.unit,
        "token_limit": systems.limit,
        "temperature": {
            **interval(estimate.mean_temperature(), n),
            **({"high": limit["temperature"]} if limit else {}),
        },
        "authors_temperature": interval(estimate.mean_temperature(AUTHORS, "ks_temperature"), n),
        "upper_limit": limit,
        "cells": [
            {"reference": name, "metric": metric, **_cell(cell, METRICS[metric].rises, n)}
            for name, cells in estimate.cells.items()
            for metric, cell in cells.items()
        ],
        "level": LEVEL,
        "seed": seed,
        "n_resamples": n_resamples,
        "versions": versions(),
    }


def _source(source: Source) -> dict[str, Any]:
    """Describe a source of outputs. The `policy` entry is None for a file."""
    return {"name": Path(source.name).name, "policy": source.store and source.store.identity["policy"]}


def _facts(outputs: Sequence[Counted]) -> dict[str, Any]:
    """Count the outputs of the tested system."""
    varying = [one.first_divergence for one in outputs if one.first_divergence is not None]
    return {
        "n_outputs": sum(one.n for one in outputs),
        "n_distinct": sum(len(one.texts) for one in outputs),
        "n_empty": sum(int(one.counts[one.texts.index("")]) for one in outputs if "" in one.texts),
        "n_varying": len(varying),
        "first_divergence": float(np.median(varying)) if varying else None,
    }


def _cell(cell: Cell, rises: bool, n: int) -> dict[str, Any]:
    best = int(cell.ks_distance.argmin())

    def mean(values: Array) -> Interval:
        return interval(values if rises else 1 - values, n)

    return {
        "tested": mean(cell.tested),
        "curve": [mean(values) for values in cell.means.T],
        "temperature": interval(cell.temperature, n),
        "ks_temperature": interval(cell.ks_temperature, n),
        "ks_distance": float(cell.ks_distance[best]),
        "ks_p": float(cell.ks_p[best]),
        "fits": cell.fits,
        "outside": cell.outside,
    }


def _recovery(temperatures: Sequence[float], found: Array, n: int) -> dict[str, Any]:
    estimates = [interval(values, n) for values in found.T]
    errors = np.abs([one["value"] - t for one, t in zip(estimates, temperatures, strict=True)])
    return {
        "estimates": estimates,
        "mean_error": float(errors.mean()),
        "largest_error": float(errors.max()),
        "n_covered": sum(one["low"] <= t <= one["high"] for one, t in zip(estimates, temperatures, strict=True)),
    }


def _upper_limit(estimate: Estimate, references: References) -> dict[str, Any] | None:
    """Return a record of the upper limit of the background temperature.

    Returns None if the tested system gave different outputs for the same prompt.

    The upper limit is the largest limit over all references. Each reference's limit is its `temperature_limit`. If
    `temperature_limit` is None, the limit is the reference's lowest nonzero temperature. If the largest limit was set
    this way, the background temperature is strictly below it, and `inclusive` is false.
    """
    if estimate.mismatch_rate is None:
        return None
    steps = {name: min(t for t in grid if t > 0) for name, grid in references.items()}
    limits = [(steps[name], False) if limit is None else (limit, True) for name, limit in estimate.limits.items()]
    temperature, inclusive = max(limits)
    return {"mismatch_rate": estimate.mismatch_rate, "temperature": temperature, "inclusive": inclusive}


def prompt_table(systems: Systems, estimate: Estimate) -> pa.Table:
    """Return the metrics, one row per prompt, system and temperature. The tested system's temperature is null."""
    rows: list[dict[str, Any]] = []

    def add(name: str, temperature: float | None, outputs: Sequence[Counted], values: Mapping[str, Array]) -> None:
        for i, (prompt, one) in enumerate(zip(systems.prompts, outputs, strict=True)):
            key = {"system": name, "temperature": temperature, "prompt": prompt}
            counts = {"n_outputs": one.n, "n_distinct": len(one.texts), "first_divergence": one.first_divergence}
            rows.append(key | counts | {metric: float(values[metric][i]) for metric in METRICS})

    add("tested", None, systems.tested, estimate.tested)
    for name, grid in systems.references.items():
        for temperature, outputs in grid.items():
            add(name, temperature, outputs, estimate.references[name][temperature])
    return pa.Table.from_pylist(rows)


def authors_csv(record: Mapping[str, Any]) -> str:
    """Return the results as one CSV row with the column names of Messina and Scotta's notebook."""
    cells = [cell for cell in record["cells"] if cell["metric"] in AUTHORS]
    row = {"Tested": record["tested"]["name"], "Tbg estimate": record["authors_temperature"]["value"]}
    for name in AUTHORS:
        found = [cell["ks_temperature"]["value"] for cell in cells if cell["metric"] == name]
        row[f"Mean_{METRICS[name].authors}"] = float(np.mean(found))
    row["Num_prompts"] = record["n_prompts"]
    for cell in cells:
        row[f"{cell['reference']}_{METRICS[cell['metric']].authors}_Tn"] = cell["ks_temperature"]["value"]
    text = io.StringIO()
    writer = csv.DictWriter(text, row, lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    return text.getvalue()


def background_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    context = {"metrics": METRICS, "verdict": background_verdict(record), "plots": plots}
    return render("background/background.md.j2", record=record, **context)


def background_verdict(record: dict[str, Any]) -> str:
    """Return a summary of the background temperature."""
    return render("background/verdict.md.j2", record=record, metrics=METRICS)
