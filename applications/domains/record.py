"""Build the record, the Markdown page and the table for clusters of questions."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from applications.confidences import ID, named_confidences
from applications.domains.clustering import (
    LEAST_MEAN_SIZE,
    N_COMPONENTS,
    N_SPLITS,
    SHARE_OF_BEST,
    Clustering,
    cluster_questions,
)
from applications.domains.intervals import LEAST_SIZE, Estimates, Values, cluster_means, minus_the_rest
from applications.domains.words import characteristic_words
from datamodules.table import QuestionTable, load_table
from extract.asking.registry import ask_command
from extract.errors import InputError
from extract.store.store import Store
from extract.text import one_line
from probes.baselines.registry import is_half
from probes.report.results import record_header
from probes.report.templates import render

#: Number of questions shown for each cluster, and maximum length of their texts in characters.
N_SHOWN, _LONGEST = 10, 300
#: Mean adjusted Rand index below which the page warns that the clusters are not stable.
UNSTABLE = 0.5
COLUMNS = (ID, "cluster", "distance", "right", "known")
_EMBEDDING = "text_embedding"


class Domains(NamedTuple):
    """A store, its question table, the clusters of its questions, and a dict from names to confidences [question]."""

    store: Store
    table: QuestionTable
    clustering: Clustering
    confidences: dict[str, Values]


def load_domains(
    store: Store, sources: Sequence[str], n_clusters: int | None, grader: str | None, seed: int
) -> Domains:
    """Load the grades, confidences and embeddings of a store's questions, and cluster the questions."""
    table = load_table(store, grader)
    if _EMBEDDING not in store.signals.names() or store.signals.missing(_EMBEDDING):
        raise InputError(
            f"Expected '{store.path}' to contain an embedding of each question, but some are missing. Run "
            f"`{ask_command(_EMBEDDING, store.path)}`."
        )
    confidences = named_confidences(sources, store, reserved=COLUMNS)
    embeddings = store.signals.read(_EMBEDDING, "0/question").double().numpy()
    return Domains(store, table, cluster_questions(embeddings, n_clusters, seed), confidences)


def domains_record(domains: Domains, seed: int) -> dict[str, Any]:
    """Compute the content of domains.json.

    Returns:
        A dict with these entries, among others:

        - `all`: Metrics over all questions, including the `accuracy` and, for each source of confidences, the `mean`
          confidence and the `gap` (mean confidence minus accuracy).
        - `clusters`: One dict per cluster, with the same metrics and three other entries. `minus_rest` is the accuracy
          of the cluster minus the accuracy of all other questions. `words` lists its characteristic words, and
          `questions` lists the questions nearest to its centre.

        Each estimate has a `decision`: 1 if its interval is above 0, −1 if it is below 0, 0 if it contains 0, and None
        if there is no interval.
    """
    store, table, clustering, confidences = domains
    n_clusters = int(clustering.cluster.max()) + 1
    texts = ["" if question.private else text for question, text in zip(store.questions, table.texts, strict=True)]
    words = characteristic_words(texts, clustering.cluster, n_clusters)
    return {
        **record_header(store, table, seed),
        "confidences": list(confidences),
        "n_distinct": clustering.n_distinct,
        "n_answers": int(table.known.sum()),
        "n_unknown": int(table.unknown.sum()),
        "stability": [
            {"clusters": n, "value": float(found.mean()), "low": float(found.min()), "high": float(found.max())}
            for n, found in clustering.stability.items()
        ],
        "all": _figures(domains, np.zeros_like(clustering.cluster), 1)[0],
        "clusters": [
            {"words": words[one], **figures, "questions": _nearest_questions(domains, one)}
            for one, figures in enumerate(_figures(domains, clustering.cluster, n_clusters))
        ],
    }


def _figures(domains: Domains, cluster: NDArray[np.int64], n_clusters: int) -> list[dict[str, Any]]:
    accuracy = domains.table.accuracy
    graded = np.isfinite(accuracy)
    of_graded = accuracy[graded], cluster[graded], n_clusters
    columns: dict[str, list[Any]] = {
        "n_questions": np.bincount(cluster, minlength=n_clusters).tolist(),
        "n_graded": np.bincount(cluster[graded], minlength=n_clusters).tolist(),
        "accuracy": _records(cluster_means(*of_graded)),
        "minus_rest": _records(minus_the_rest(*of_graded)),
    }
    confidences: dict[str, list[dict[str, Any]]] = {}
    for name, values in domains.confidences.items():
        gap = values - _accuracy_for(name, domains.table)
        rows = np.isfinite(gap)
        found = {
            "n_questions": np.bincount(cluster[rows], minlength=n_clusters).tolist(),
            "mean": _records(cluster_means(values[rows], cluster[rows], n_clusters)),
            "gap": _records(cluster_means(gap[rows], cluster[rows], n_clusters)),
        }
        confidences[name] = _rows(found)
    columns["confidences"] = _rows(confidences) if confidences else [{}] * n_clusters
    return _rows(columns)


def _accuracy_for(confidence: str, table: QuestionTable) -> Values:
    """Return the accuracy [question] on the answers that were not used for the confidence.

    It is NaN if none of these answers has a known grade.
    """
    if not is_half(confidence):
        return table.accuracy
    with np.errstate(invalid="ignore"):
        accuracy: Values = table.held_right / table.held_known
    return accuracy


def _records(found: Estimates) -> list[dict[str, Any]]:
    """Convert estimates to one dict per cluster, each with a `decision` (see `domains_record`). NaN becomes None."""
    records = _rows({name: _without_nan(values) for name, values in found._asdict().items()})
    for record in records:
        low, high = record["low"], record["high"]
        record["decision"] = None if low is None else int(low > 0) - int(high < 0)
    return records


def _without_nan(values: Values) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _nearest_questions(domains: Domains, one: int) -> list[dict[str, Any]]:
    """Return the distinct questions nearest to a cluster's centre, in order of distance."""
    _, table, clustering, confidences = domains
    rows = np.flatnonzero(clustering.cluster == one)
    rows = rows[np.argsort(clustering.distance[rows], kind="stable")]
    nearest = list({domains.store.questions[row].prompt: row for row in rows[::-1].tolist()}.values())[::-1][:N_SHOWN]
    of_confidences = {name: _without_nan(values[nearest]) for name, values in confidences.items()}
    columns: dict[str, list[Any]] = {
        ID: [table.ids[row] for row in nearest],
        "text": [one_line(table.texts[row], _LONGEST) for row in nearest],
        "accuracy": _without_nan(table.accuracy[nearest]),
        "confidences": _rows(of_confidences) if confidences else [{}] * len(nearest),
    }
    return _rows(columns)


def domains_table(domains: Domains) -> pa.Table:
    """Return a table with one row per question."""
    _, table, clustering, confidences = domains
    columns = (table.ids, clustering.cluster, clustering.distance, table.right, table.known)
    return pa.table({**dict(zip(COLUMNS, columns, strict=True)), **confidences})


def domains_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    settings = {
        "least_size": LEAST_SIZE,
        "least_mean_size": LEAST_MEAN_SIZE,
        "n_components": N_COMPONENTS,
        "n_splits": N_SPLITS,
        "share_of_best": SHARE_OF_BEST,
        "unstable": UNSTABLE,
    }
    summary = domains_summary(record)
    return render("domains/domains.md.j2", record=record, summary=summary, plots=plots, is_half=is_half, **settings)


def domains_summary(record: dict[str, Any]) -> str:
    """Return a summary of the significant differences and calibration gaps."""
    gaps: dict[str, dict[int, list[Any]]] = {name: {1: [], -1: []} for name in record["confidences"]}
    for cluster in record["clusters"]:
        for name, found in cluster["confidences"].items():
            gaps[name].get(found["gap"]["decision"], []).append(cluster)
    return render("domains/summary.md.j2", record=record, gaps=gaps)
