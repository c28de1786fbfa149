"""The page of a run, and its summary for a terminal."""

from collections.abc import Sequence
from typing import Any

from probes.registry import chosen_option
from probes.report.templates import COLUMNS, interval, render
from probes.saved.card import what_is_read


def report_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """The report of a run as Markdown, from the content of report.json, with the names of its pictures."""
    ((target, methods),) = record["splits"]["test"].items()
    probe, figures = next(iter(methods.items()))
    option, value = chosen_option(record["chosen"])
    return render(
        "report/report.md.j2",
        record=record,
        policy=record["policy"],
        plots=plots,
        target=target,
        methods=methods,
        probe=probe,
        n_answers=round(figures["n_samples"] / figures["n_questions"], 1),
        features=what_is_read(record["chosen"]["layer"], record["chosen"]["position"], record["pooled"]),
        option=option,
        value=value,
        at_end=len(record["tried"]) > 1 and float(value) in (min(record["tried"]), max(record["tried"])),
        columns=[(key, label) for key, label in COLUMNS if key in figures],
    )


def summary_table(methods: dict[str, Any]) -> str:
    """The main metrics of every method in aligned columns, for a terminal."""
    first = next(iter(methods.values()))
    columns = [key for key in ("auroc", "brier", "brier_skill", "ece_width") if key in first]
    rows = [("test split, 95 % intervals", *(label for key, label in COLUMNS if key in columns))]
    rows += [(name, *(interval(figures[key]) for key in columns)) for name, figures in methods.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
