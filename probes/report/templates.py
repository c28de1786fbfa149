"""Render Markdown pages from jinja2 templates (``*.md.j2``), and define the template filters."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

#: Metrics and their column headings, in the order of the tables.
COLUMNS = (
    ("auroc", "AUROC"),
    ("brier", "Brier"),
    ("brier_skill", "skill"),
    ("ece_width", "ECE"),
    ("ece_mass", "ECE (mass)"),
    ("rmsce", "RMSCE"),
    ("spearman", "Spearman"),
    ("aurc", "AURC"),
    ("auroc_hard", "AUROC of p̂ ≥ ½"),
)
#: Significance level for corrected p-values.
LEVEL = 0.05


def render(template: str, **context: Any) -> str:
    """Render a template in ``probes/`` or ``applications/``, for example ``comparison/comparison.md.j2``."""
    return _environment().get_template(template).render(**context)


def method_label(name: str) -> str:
    """Return the label of a method in tables, for example ``layer-average probe`` for ``layer_average``."""
    source = '{% from "report/macros.md.j2" import label %}{{ label(name) }}'
    return _environment().from_string(source).render(name=name).strip()


@cache
def _environment() -> Environment:
    packages = Path(__file__).parents[2]
    options: Any = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    loader = FileSystemLoader([packages / "probes", packages / "applications"])
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    filters = (interval, p_equation, relation, number, inline, cell, spans)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters |= {"p": p_value, "difference": partial(interval, sign="+")}  # +0.051 [+0.026, +0.073]
    return environment


def number(value: float | None, digits: int = 3) -> str:
    """Format a number as ``0.690``. None becomes a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def interval(estimate: Mapping[str, Any] | None, sign: str = "") -> str:
    """Format an estimate as ``0.690 [0.620, 0.750]``, or as ``0.690`` if it has no interval. None becomes a dash."""
    if not estimate or estimate["low"] is None:
        return number(estimate["value"] if estimate else None)
    value, low, high = (f"{estimate[name]:{sign}.3f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def p_value(p: float | None) -> str:
    """Format a p-value as ``0.012`` or ``< 0.001``. None becomes a dash."""
    return "< 0.001" if p is not None and p < 0.001 else number(p)


def p_equation(p: float | None) -> str:
    """Format a p-value as ``p = 0.012`` or ``p < 0.001``."""
    return f"p = {p_value(p)}".replace("= <", "<")


def relation(test: dict[str, Any], higher_is_better: bool = True) -> str:
    """Describe a test result in words, such as ``significantly better``, using the corrected p-value."""
    if test["p_holm"] is None or test["p_holm"] >= LEVEL:
        return "not significantly different"
    return "significantly better" if (test["value"] > 0) == higher_is_better else "significantly worse"


def inline(text: str) -> str:
    """Replace line breaks and backticks so that the text can be used as inline code."""
    return text.replace("`", "'").replace("\n", "⏎")


def cell(text: str) -> str:
    r"""Escape text so that it can be used as inline code in a table cell.

    >>> print(cell("a|b"))
    a\|b
    """
    return inline(text).replace("|", "\\|")


def spans(layers: Sequence[int]) -> str:
    """Format layer numbers, with ranges for consecutive layers.

    >>> spans([3]), spans([15, 16, 17, 20])
    ('layer 3', 'layers 15–17, 20')
    """
    starts = [i for i, layer in enumerate(layers) if i == 0 or layer != layers[i - 1] + 1]
    runs = [layers[start:end] for start, end in pairwise([*starts, len(layers)])]
    names = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)
    return f"layer{'s' * (len(layers) > 1)} {names}"
