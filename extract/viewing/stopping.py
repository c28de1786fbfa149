"""Text report on the early-stopping decisions of a store."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from extract.sampling.stopping_settings import turns
from extract.store.samples import REJECTED
from extract.store.store import Store
from extract.viewing.summary import interval


def describe_stopping(stores: Sequence[Store], grader: str | None) -> list[str]:
    """Describe the early-stopping decisions in a store, or in all stores of a temperature grid.

    The leading answer to a question is the most frequent one. The accuracy of the decisions is the proportion of
    questions whose leading answer is right. Questions that the server rejected are left out. A leading answer that
    could not be parsed counts as wrong. The result is empty if no stopping rule was used.
    """
    outcomes, settings = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    right = dict[tuple[str, str | None], bool | None]()
    for store in stores:
        for part in store.samples.ranges():
            if record := store.samples.stopping(part):
                outcomes |= record["questions"]
                budget = len(turns(record["temperatures"], record["budget"]))
                settings[f"{record['rule']} (threshold {record['threshold']:g}, at most {budget} answers)"] = record
            if grader is not None and part in store.grades.ranges(grader):
                grades = store.grades.read(grader, part).to_pylist()
                right |= {(row["question_id"], row["answer"]): row["right"] for row in grades}
    if not outcomes:
        return []
    decided = {id_: one for id_, one in outcomes.items() if one["reason"] != REJECTED}
    n_rule = sum(one["reason"] == "rule" for one in decided.values())
    lines = [f"{n_rule:,} of {len(decided):,} questions stopped early by {', '.join(settings)}"]
    if len(decided) < len(outcomes):
        lines[0] += f"; {len(outcomes) - len(decided):,} were rejected by the server"
    lines.append(f"each decision uses {np.mean([one['n_answers'] for one in decided.values()]):.1f} answers on average")
    first = next(iter(settings.values()))
    if len(first["temperatures"]) > len(stores):
        return [*lines, "the accuracy of the decisions is shown below the table of temperatures"]
    if grader != first["grader"]:
        return [*lines, f"the accuracy of the decisions requires grades by {first['grader']}, which parsed the answers"]
    found = [False if one["answer"] is None else right.get((id_, one["answer"])) for id_, one in decided.items()]
    known = np.array([value for value in found if value is not None], dtype=float)
    estimate = interval(known)
    if estimate is None:
        return [*lines, "the accuracy of the decisions requires at least two known grades"]
    mean, low, high = estimate
    return [*lines, f"accuracy of the decisions: {mean:.3f} [{low:.3f}, {high:.3f}] over {len(known):,} questions"]
