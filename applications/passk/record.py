"""Build the record, the table and the Markdown page for Pass@K."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from applications.confidences import ID, named_confidences
from applications.intervals import estimate, mean_of, mean_over_groups
from applications.passk.estimators import Counts, Values, pass_at_k, predict, predictive_band
from applications.passk.extrapolation import Extrapolation, extrapolate, why_not
from applications.passk.instances import error_records
from applications.passk.temperatures import as_drawn, temperature_record
from applications.stores import known_temperature, load_tables
from datamodules.table import QuestionTable
from extract.errors import InputError
from extract.store.store import Store
from probes.baselines.registry import is_half
from probes.report.results import record_header
from probes.report.templates import render

#: Default values of K. Values above the smallest number of graded answers are left out.
DEFAULT_K = (1, 4, 16, 64)
COLUMNS = (ID, "temperature", "group", "right", "known")
_POINTS = 48


class Graded(NamedTuple):
    """Stores, and answer counts for the questions with a known grade at every temperature.

    Attributes:
        stores: Stores by temperature, in ascending order.
        tables: Question tables of the stores.
        rows: Row of each of these questions in the question tables, [question] int64.
        right: Number of right answers, [temperature, question].
        known: Number of graded answers, always at least 1, [temperature, question].
    """

    stores: dict[float, Store]
    tables: list[QuestionTable]
    rows: Counts
    right: Counts
    known: Counts


def load_graded(stores: dict[float, Store], grader: str | None) -> Graded:
    """Count the right answers in a store or a temperature grid."""
    tables = list(load_tables(stores, grader).values())
    right, known = (np.stack([getattr(table, name) for table in tables]) for name in ("right", "known"))
    rows = np.flatnonzero((known > 0).all(0))
    if not len(rows):
        raise InputError(
            f"Expected at least one question with a known grade{' at every temperature' if len(stores) > 1 else ''}, "
            f"but none of the {known.shape[1]} questions has one. Grade the answers with a different grader."
        )
    return Graded(stores, tables, rows, right[:, rows], known[:, rows])


def read_confidences(graded: Graded, sources: Sequence[str], k: Sequence[int]) -> list[dict[str, Values]]:
    """For each store, return a dict from source name to confidences [question]."""
    found, reserved = [], [*COLUMNS, "pass", "posterior", *(f"pass_at_{one}" for one in k)]
    for store in graded.stores.values():
        named = named_confidences(sources, store, reserved)
        found.append({name: values[graded.rows] for name, values in named.items()})
        for name, values in found[-1].items():
            if (gaps := np.isnan(values)).any():
                raise InputError(
                    f"Expected {name!r} to contain a confidence for every graded question of '{store.path}', but "
                    f"{gaps.sum()} of {len(gaps)} questions have none, for example "
                    f"{graded.tables[0].ids[graded.rows[gaps.argmax()]]!r}. Pass a column without missing values."
                )
    return found


def passk_record(
    graded: Graded, sources: Sequence[str], k: Sequence[int] | None, n_resamples: int, seed: int
) -> tuple[dict[str, Any], pa.Table]:
    """Compute, predict and extrapolate Pass@K for each store, and compare the temperatures of a grid.

    Returns:
        The content of passk.json, and a table with one row per temperature and question. In passk.json, `stores`
        contains one entry per store. `temperatures` is the result of `temperature_record`, or None for a single store.
    """
    temperatures, first = list(graded.stores), next(iter(graded.stores.values()))
    right, known = as_drawn(graded.right, graded.known, temperatures)
    most = int(known.min())
    k = [one for one in DEFAULT_K if one <= most] if k is None else sorted(set(k))
    if not k:
        raise InputError("Expected `k` to contain at least one value, but it is empty. Pass '[1,4]', for example.")
    confidences = read_confidences(graded, sources, k)
    groups, group = np.unique(np.array(graded.tables[0].groups)[graded.rows], return_inverse=True)
    ids = [graded.tables[0].ids[row] for row in graded.rows]
    records, parts = [], []
    for i, (temperature, table) in enumerate(zip(temperatures, graded.tables, strict=True)):
        options: Any = {"n_resamples": n_resamples, "seed": seed}
        measured = _Measured(right[i], known[i], k, torch.from_numpy(group) if len(groups) > 1 else None, options)
        record, extrapolation = _store_record(measured, confidences[i], table, graded, i)
        shown = known_temperature(temperature)
        records.append({"temperature": shown, "identity": list(graded.stores.values())[i].sha256, **record})
        keys = (ids, pa.array([shown] * len(ids), pa.float64()), groups[group], right[i], known[i])
        columns = dict(zip(COLUMNS, keys, strict=True)) | _columns(measured, confidences[i], extrapolation)
        parts.append(pa.table(columns))
    record = {
        **record_header(first, graded.tables[0], seed, n_resamples),
        "k": k,
        "n_questions": len(graded.rows),
        "n_questions_left_out": len(graded.tables[0].ids) - len(graded.rows),
        "n_groups": len(groups),
        "confidences": list(confidences[0]),
        "stores": records,
        "temperatures": temperature_record(graded.right, graded.known, temperatures, ids, n_resamples, seed)
        if len(temperatures) > 1
        else None,
    }
    return record, pa.concat_tables(parts, promote_options="default")


class _Measured(NamedTuple):
    """Answer counts and question groups [question] of one store, the values of k, and the bootstrap options."""

    right: Counts
    known: Counts
    k: Sequence[int]
    group: torch.Tensor | None
    options: dict[str, int]

    def mean(self, values: Values) -> dict[str, Any]:
        """Return the mean of values [question] with its interval."""
        return estimate(mean_of(values), len(values), **self.options)


def _store_record(
    measured: _Measured, confidences: Mapping[str, Values], table: QuestionTable, graded: Graded, i: int
) -> tuple[dict[str, Any], Extrapolation | None]:
    """Compute the results of the store with index `i`, and fit beta-binomial models to its counts.

    Returns:
        The record, and the fitted models (None if they cannot be fitted). The record contains counts and these entries:

        - `avg_at_n`: Mean accuracy.
        - `pass_at_k`, `over_groups`: For each value of `k`, the mean Pass@K over questions and over groups.
        - `errors`: Result of `error_records`.
        - `curve`: Dict with the entries `k` (values of k), `measured` (mean Pass@K for each k up to the smallest number
          of graded answers) and `predicted` (`predictive_band` of each source of confidences).
        - `extrapolation`: Record of `extrapolate`. If it is None, `not_extrapolated` gives the reason.
        - `beyond`: Values of k in the table of extrapolations.
    """
    right, known, k, group, options = measured
    passed, most = pass_at_k(right, known, k), int(known.min())
    beyond = _beyond(known)
    curve = sorted({*k, most, *beyond, *np.geomspace(1, beyond[-1], _POINTS).round().astype(int).tolist()})
    within = [one for one in curve if one <= most]
    counts = {False: (right, known)}
    if any(map(is_half, confidences)):
        counts[True] = (table.held_right[graded.rows], table.held_known[graded.rows])
    reason = why_not(graded.right[i], graded.known[i])
    found = None if reason else extrapolate(graded.right[i], graded.known[i], curve, **options)
    predicted = {name: predictive_band(values, curve) for name, values in confidences.items()}
    lengths = table.answers.n_tokens[~table.answers.rejected]
    record = {
        "n_answers": int(graded.known[i].sum()),
        "n_unknown": int(table.unknown[graded.rows].sum()),
        "fewest": int(graded.known[i].min()),
        "tokens_per_answer": float(lengths.mean()) if np.isfinite(lengths).all() and len(lengths) else None,
        "n_solved": int((right > 0).sum()),
        "avg_at_n": measured.mean(right / known),
        "pass_at_k": [measured.mean(values) for values in passed],
        "over_groups": None
        if group is None
        else [estimate(mean_over_groups(values, group), len(values), **options) for values in passed],
        "errors": error_records(confidences, counts, k, **options),
        "curve": {
            "k": curve,
            "measured": [measured.mean(values) for values in pass_at_k(right, known, within)],
            "predicted": {
                name: [dict(zip(band, map(float, ends), strict=True)) for ends in zip(*band.values(), strict=True)]
                for name, band in predicted.items()
            },
        },
        "beyond": beyond,
        "extrapolation": found and found.record,
        "not_extrapolated": reason,
    }
    return record, found


def _beyond(known: Counts) -> list[int]:
    """Return the first three powers of 4 above the smallest value of `known`."""
    return [4**power for power in range(99) if 4**power > known.min()][:3]


def _columns(
    measured: _Measured, confidences: Mapping[str, Values], extrapolation: Extrapolation | None
) -> dict[str, Values]:
    """Return table columns by name: Pass@K, confidences with their predictions of Pass@K, and posterior Pass@K."""
    right, known, k, *_ = measured
    columns = {f"pass_at_{one}": values for one, values in zip(k, pass_at_k(right, known, k), strict=True)}
    for name, confidence in confidences.items():
        columns[name] = confidence
        columns |= {f"{name}_at_{one}": values for one, values in zip(k, predict(confidence, k), strict=True)}
    if extrapolation is not None:
        beyond = _beyond(known)
        posterior = extrapolation.likelier.posterior_pass_at_k(right, known, beyond)
        columns |= {f"posterior_at_{one}": values for one, values in zip(beyond, posterior, strict=True)}
    return columns


def passk_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    decoding = record["policy"]["decoding"]
    temperatures = ", ".join(
        "unknown" if store["temperature"] is None else f"{store['temperature']:g}" for store in record["stores"]
    )
    shown = {**record, "policy": {**record["policy"], "decoding": {**decoding, "temperature": temperatures}}}
    return render("passk/passk.md.j2", record=record, shown=shown, plots=plots, summary=passk_summary(record))


def passk_summary(record: dict[str, Any]) -> str:
    """Return a summary with a table of Pass@K."""
    return render("passk/summary.md.j2", record=record)
