"""Record, table and Markdown page for a comparison of stores."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa

from applications.intervals import estimate, mean_of
from applications.models.auroc import auroc_difference, auroc_estimate, auroc_of_counts
from applications.models.classes import answer_shares, class_record, find_classes
from applications.models.panel import Labels, Panel, Values
from applications.paired import effective_clusters, mean_interval, n_needed, paired_record, share_interval
from extract.hashing import differences
from probes.metrics.significance import add_holm
from probes.report.results import record_header
from probes.report.templates import LEVEL, render

#: With fewer effective clusters, clustered intervals are unreliable.
FEW_CLUSTERS = 20


def models_record(
    panel: Panel,
    confidences: Values,
    clusters: Labels | None,
    cluster_field: str | None,
    difference: float,
    n_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Compute the accuracies, AUROCs and class metrics of all stores, and test all paired differences.

    Args:
        confidences: Confidences, [store, question]; empty if there are none.
        clusters: Index of each question's cluster, [question]; None without clusters.
        cluster_field: Question field that defines the clusters.
        difference: Difference in accuracy to detect. The number of questions needed to detect it is reported.

    Returns:
        The content of models.json, with these entries among others:

        - `stores`: Accuracy and counts of each store.
        - `pairs`: Result of `paired_record` for each pair of stores, with a Holm-corrected p-value.
        - `policy_differences`: Fields in which the models or sampling settings of the stores differ.
        - `auroc`: AUROCs and their paired differences; None without confidences.
        - `classes`: Result of `class_record` for each store; None without classes.
    """
    accuracy = panel.accuracy
    n = accuracy.shape[1]
    options: dict[str, int] = {"n_resamples": n_resamples, "seed": seed}
    stores = []
    for name, store, table, rows, values in zip(
        panel.names, panel.stores, panel.tables, panel.rows, accuracy, strict=True
    ):
        found = {
            "name": name,
            "identity": store.sha256,
            "policy": store.identity["policy"],
            "n_questions_of_store": len(table.ids),
            "n_answers": int(table.known[rows].sum()),
            "n_unknown": int(table.unknown[rows].sum()),
            "truncated": float(table.answers.truncated[np.isin(table.answers.question, rows)].mean()),
            "accuracy": accuracy_record(values, clusters, **options),
        }
        stores.append(found)
    pairs = []
    for a, b in combinations(range(len(stores)), 2):
        found = paired_record(accuracy[a] - accuracy[b], cluster=clusters, **options)
        needed = None if found["detectable"] is None else n_needed(found["error"], n, difference)
        pairs.append({"a": panel.names[a], "b": panel.names[b], **found, "needed": needed})
    add_holm(pairs)
    return {
        **record_header(panel.stores[0], panel.tables[0], seed, n_resamples),
        "n_questions": n,
        "n_shared": panel.n_shared,
        "n_questions_left_out": panel.n_shared - n,
        "cluster_field": cluster_field,
        "n_clusters": None if clusters is None else int(clusters.max()) + 1,
        "n_effective_clusters": None if clusters is None else effective_clusters(clusters),
        "difference": difference,
        "policy_differences": policy_differences(panel),
        "stores": stores,
        "pairs": pairs,
        "auroc": auroc_record(panel, confidences) if confidences.size else None,
        "classes": classes_record(panel, **options),
    }


def accuracy_record(values: Values, clusters: Labels | None, n_resamples: int, seed: int) -> dict[str, Any]:
    """Compute the mean of the accuracies [question], with three intervals: t, bootstrap and cluster-robust."""
    return {
        "t": share_interval(values),
        "bootstrap": estimate(mean_of(values), len(values), n_resamples, seed),
        "clustered": None if clusters is None else mean_interval(values, clusters),
    }


def policy_differences(panel: Panel) -> list[dict[str, Any]]:
    """Return the fields in which the models or sampling settings differ, with the value in each store."""
    policies = [{**store.identity["policy"], "sampler": store.identity["sampler"]} for store in panel.stores]
    lines = (line for policy in policies[1:] for line in differences(policy, policies[0]))
    fields = dict.fromkeys(line.partition(":")[0] for line in lines)
    return [{"field": field, "values": [_value_at(policy, field) for policy in policies]} for field in fields]


def _value_at(record: Mapping[str, Any], field: str) -> Any:
    value: Any = record
    for key in field.split("."):
        value = (value or {}).get(key)
    return value


def auroc_record(panel: Panel, confidences: Values) -> dict[str, Any]:
    """Compute the AUROCs and test their differences. Only questions with a confidence in every store are used."""
    kept = np.isfinite(confidences).all(0)
    right, known = panel.right[:, kept], panel.known[:, kept]
    found = [auroc_of_counts(*columns) for columns in zip(confidences[:, kept], right, known, strict=True)]
    tests = [
        {"a": panel.names[a], "b": panel.names[b], **difference}
        for a, b in combinations(range(len(found)), 2)
        if (difference := auroc_difference(found[a], found[b]))
    ]
    add_holm(tests)
    return {
        "n_questions": int(kept.sum()),
        "one_answer": bool((known == 1).all()),
        "stores": [
            {"name": name, "n_answers": int(of_store.sum()), "auroc": auroc_estimate(auroc)}
            for name, of_store, auroc in zip(panel.names, known, found, strict=True)
        ],
        "pairs": tests,
    }


def classes_record(panel: Panel, n_resamples: int, seed: int) -> dict[str, Any] | None:
    """Compute the class metrics of each store, or return None if the answers are not classes."""
    questions = panel.questions
    classes = find_classes(questions)
    if classes is None:
        return None
    return {
        name: class_record(classes, answer_shares(table, rows, questions, classes), n_resamples, seed)
        for name, table, rows in zip(panel.names, panel.tables, panel.rows, strict=True)
    }


def main_interval(accuracy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the clustered interval for an accuracy, or the t interval if there are no clusters."""
    return accuracy["clustered"] or accuracy["t"]


def models_table(panel: Panel, confidences: Values, clusters: Labels | None) -> pa.Table:
    """Return a table with one row per question."""
    ids = panel.tables[0].ids
    columns: dict[str, Any] = {"question_id": [ids[row] for row in panel.rows[0]]}
    if clusters is not None:
        columns["cluster"] = clusters
    for name, right, known in zip(panel.names, panel.right, panel.known, strict=True):
        columns |= {f"{name}_right": right, f"{name}_known": known}
    for name, values in zip(panel.names, confidences, strict=False):
        columns[f"{name}_confidence"] = pa.array(values, from_pandas=True)
    return pa.table(columns)


def models_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the Markdown page with the given plots."""
    context = {"verdict": models_verdict(record), "few_clusters": FEW_CLUSTERS, "plots": plots}
    return render("models/models.md.j2", record=record, **context)


def models_verdict(record: dict[str, Any]) -> str:
    """Return a summary of the accuracies and the significant differences."""
    accuracies = [main_interval(store["accuracy"]) for store in record["stores"]]
    significant = [pair for pair in record["pairs"] if pair["p_holm"] < LEVEL]
    return render("models/verdict.md.j2", record=record, accuracies=accuracies, significant=significant).strip()
