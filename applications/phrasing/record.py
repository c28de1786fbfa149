"""Build the record, the table and the Markdown page for a comparison of phrasings."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from applications.paired import mean_interval, paired_record, share_interval
from applications.phrasing.pairs import LIKELIHOOD, Cells, Values
from datamodules.table import QuestionTable
from extract.store.store import Store
from probes.metrics.significance import add_holm
from probes.report.results import record_header
from probes.report.templates import LEVEL, render

ACCURACY = "accuracy"


def phrasing_record(store: Store, table: QuestionTable, cells: Cells, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compare the accuracies and likelihoods of all pairs of forms.

    Returns:
        The content of phrasing.json, with these entries among others:

        - `forms`: Counts, mean accuracy and mean likelihood of each form.
        - `tests`: Results of `paired_record` for the accuracies and the likelihoods of each pair of forms, with Holm's
          correction over all tests.
        - `joint`: For each pair of forms `a` and `b`, the probabilities of the four outcomes of two independent
          answers, one to each form. The names say which answers are right: `both`, `only_a`, `only_b` or `neither`.
    """
    values = {ACCURACY: cells.accuracy}
    if np.isfinite(cells.likelihood).any():
        values[LIKELIHOOD] = cells.likelihood
    tests, joint = [], []
    for name, of_figure in values.items():
        for a, b in combinations(range(len(cells.forms)), 2):
            both = np.isfinite(of_figure[a] + of_figure[b])
            if both.sum() < 2:
                continue
            test = paired_record(of_figure[a, both] - of_figure[b, both], n_resamples, seed)
            names = {"a": cells.forms[a], "b": cells.forms[b]}
            tests.append({"figure": name, **names, **test})
            if name == ACCURACY:
                joint.append({**names, **_joint(of_figure[a, both], of_figure[b, both])})
    add_holm(tests)
    return {
        **record_header(store, table, seed, n_resamples),
        "n_pairs": len(cells.pairs),
        "n_questions_left_out": cells.n_left_out,
        "forms": [
            {
                "name": form,
                "n_questions": int(cells.n_questions[row].sum()),
                "n_pairs": int((cells.n_questions[row] > 0).sum()),
                "n_answers": int(cells.n_answers[row].sum()),
                **{name: _mean(name, of_figure[row]) for name, of_figure in values.items()},
            }
            for row, form in enumerate(cells.forms)
        ],
        "tests": tests,
        "joint": joint,
    }


def _mean(figure: str, values: Values) -> dict[str, Any] | None:
    finite = values[np.isfinite(values)]
    mean = share_interval if figure == ACCURACY else mean_interval
    return mean(finite) if len(finite) > 1 else None


def _joint(a: Values, b: Values) -> dict[str, dict[str, Any]]:
    """Compute the mean probability of each joint outcome of two independent answers, with its interval.

    `a` and `b` [pair] are the accuracies on the two forms of a question.
    """
    shares = {"both": a * b, "only_a": a * (1 - b), "only_b": (1 - a) * b, "neither": (1 - a) * (1 - b)}
    return {name: share_interval(share) for name, share in shares.items()}


def phrasing_table(cells: Cells) -> pa.Table:
    """Return a table with one row per combination of fact (column `pair`) and phrasing (column `form`)."""
    form, pair = np.nonzero(cells.n_questions)
    columns: dict[str, Any] = {"pair": [cells.pairs[i] for i in pair], "form": [cells.forms[i] for i in form]}
    columns |= {name: getattr(cells, name)[form, pair] for name in ("n_questions", "n_answers", ACCURACY)}
    return pa.table({**columns, LIKELIHOOD: pa.array(cells.likelihood[form, pair], from_pandas=True)})


def phrasing_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    tests = {name: [test for test in record["tests"] if test["figure"] == name] for name in (ACCURACY, LIKELIHOOD)}
    context = {"verdict": phrasing_verdict(record), "tests": tests, "plots": plots}
    return render("phrasing/phrasing.md.j2", record=record, **context)


def phrasing_verdict(record: dict[str, Any]) -> str:
    """Return a summary of the accuracies and the significant differences."""
    significant = [test for test in record["tests"] if test["p_holm"] < LEVEL]
    return render("phrasing/verdict.md.j2", record=record, significant=significant).strip()
