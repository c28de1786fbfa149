"""Build the record and the results page for a grid of scores."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from probes.metrics.functional import capability_auroc
from probes.metrics.significance import add_holm
from probes.report.evaluate import Scored, common_rows, difference, estimate
from probes.report.results import record_header
from probes.report.templates import LEVEL, render
from probes.training_free.clustered_auroc import LEAST_OF_A_CLASS, clustered_auroc, max_t
from probes.training_free.grid import PARTS, Grid

#: Names of the control scores, which do not use any signal.
LENGTH, TRUNCATED = "answer length", "truncated"


def grid_record(grid: Grid, n_resamples: int, seed: int) -> dict[str, Any]:
    """Evaluate the best score of each family in a grid.

    Args:
        n_resamples: Number of resamples for each interval. Each p-value uses five times as many draws.

    Returns:
        A record. `chosen` is the name of the best score. `rows` contains the test metrics of all reported scores.
        `groups` contains the test metrics of the chosen score for each group of questions. `tests` compares the chosen
        score with other scores. `grid` and `parts` contain counts. `masked` states why a signal or family has no
        reported score.
    """
    tested = _Tested(grid, n_resamples, seed)
    p, auroc = grid.p, grid.aurocs["test"].auroc
    unchosen = sorted({name.family for name in grid.names} - set(tested.families))
    reason = "on the validation answers, its scores are constant, undefined or equivalent to unweighted scores"
    return {
        **record_header(grid.store, grid.table, seed, n_resamples),
        "parts": {name: _counts(grid, name) for name in PARTS},
        "n_questions_left_out": int((grid.table.known < 2).sum()),
        "longer_is_wrong": tested.longer_is_wrong,
        "chosen": tested.chosen,
        "reference": tested.reference,
        "rows": tested.rows(),
        "tests": tested.tests(),
        "groups": tested.groups(),
        "grid": {
            "n_scores": len(p),
            "n_tested": int(p.isfinite().sum()),
            "n_above": int(((p < LEVEL) & (auroc > 0.5)).sum()),
            "n_below": int(((p < LEVEL) & (auroc < 0.5)).sum()),
        },
        "masked": grid.masked | dict.fromkeys(unchosen, reason),
    }


def _counts(grid: Grid, name: str) -> dict[str, int]:
    """Count the questions and answers in the `val` or `test` part."""
    part = grid.parts[name]
    return {
        "n_questions": part.n_questions,
        "n_answers": len(part.row),
        "n_right": int(part.right.sum()),
        "n_unknown": part.n_unknown,
        "n_truncated": int(grid.table.answers.truncated[part.row.numpy()].sum()),
        "n_empty": int((grid.n_tokens[part.row] == 0).sum()),
    }


def length_stratum(n_tokens: Tensor) -> Tensor:
    """Return each answer's length class [answer] int64.

    Each length from 1 to 5 tokens has its own class, and length 0 counts as 1. Above 5 tokens, lengths in the same
    class differ by less than 25 %.
    """
    return (n_tokens.clamp_min(1).double().log() / math.log(1.25) + 1e-9).floor().long()


class _Tested:
    """Metrics and significance tests of the reported scores on the test answers."""

    def __init__(self, grid: Grid, n_resamples: int, seed: int) -> None:
        self._grid, self._n_resamples, self._seed = grid, n_resamples, seed
        self._part, val = grid.parts["test"], grid.parts["val"]
        self._cut = torch.from_numpy(grid.table.answers.truncated)[self._part.row]
        self._stratum = length_stratum(grid.n_tokens[self._part.row])
        self.families = grid.of_families()
        reported = [*self.families.values(), *([] if grid.reference is None else [grid.reference])]
        self._row_of = {str(grid.names[row]): row for row in reported}
        self.chosen = str(grid.names[grid.chosen])
        self.reference = None if grid.reference is None else str(grid.names[grid.reference])
        scores = {name: grid.scores[row].double() for name, row in self._row_of.items()}
        shorter = -grid.n_tokens.double().log()
        shorter[grid.n_tokens == 0] = torch.nan
        auroc = clustered_auroc(shorter[None, val.row], val.right, val.question, val.n_questions).auroc
        self.longer_is_wrong = not float(auroc[0]) < 0.5
        scores[LENGTH] = shorter[self._part.row] * (1 if self.longer_is_wrong else -1)
        if 0 < int(self._cut.sum()) < len(self._cut):
            scores[TRUNCATED] = -self._cut.double()
        right, known, question = self._part.right.double(), torch.ones(len(self._cut)), self._part.question
        self._scored = {name: Scored(score, right, known, question) for name, score in scores.items()}

    def rows(self) -> list[dict[str, Any]]:
        """Compute metrics for each reported score.

        The AUROC is computed for all answers, for untruncated answers, and within length classes.
        """
        part, scores = self._part, torch.stack([scored.confidence for scored in self._scored.values()])
        p_values = max_t(scores, part.right, part.question, part.sample, 5 * self._n_resamples, self._seed).tolist()
        rows = []
        for (name, scored), p in zip(tqdm(self._scored.items(), desc="metrics", unit=" scores"), p_values, strict=True):
            description: dict[str, Any] = {"role": "control", "family": None, "half": False, "auroc_val": None}
            if name in self._row_of:
                row = self._row_of[name]
                score = self._grid.names[row]
                description = {
                    **score._asdict(),
                    "role": "best" if row in self.families.values() else "reference",
                    "family": score.family,
                    "half": score.half,
                    "auroc_val": float(self._grid.aurocs["val"].auroc[row]),
                }
            figures = {
                "auroc": self._auroc(scored),
                "uncut": self._auroc(scored.take(~self._cut)),
                "equal_length": self._auroc(scored._replace(fold=self._stratum)),
                "p_corrected": None if p != p else p,
                "n_answers": int(scored.usable.sum()),
                "share_of_pairs": _share_of_pairs(scored, self._stratum),
            }
            rows.append({"name": name, **description, **figures})
        return rows

    def tests(self) -> list[dict[str, Any]]:
        """Compare the chosen score with answer length, mean token entropy and scores that need several answers."""
        pairs = [(self.chosen, name) for name in (LENGTH, self.reference) if name not in (None, self.chosen)]
        pairs += [(name, self.chosen) for name, row in self._row_of.items() if self._grid.names[row].half]
        tests: list[dict[str, Any]] = []
        for a, b in pairs:
            first, second = common_rows(self._scored[a], self._scored[b])
            test = difference(first, second, "auroc", self._n_resamples, self._seed, 5 * self._n_resamples)
            if test is not None:
                counts = {"n_questions": first.n_questions, "n_answers": len(first.right)}
                tests.append({"a": a, "b": b, **counts, **test})
        add_holm(tests)
        return tests

    def groups(self) -> list[dict[str, Any]]:
        """Return metrics of the chosen score for each group of questions."""
        chosen, table = self._scored[self.chosen], self._grid.table
        group_of = np.array(table.groups)[table.answers.question[self._part.row.numpy()]]
        groups = []
        for group in sorted(set(group_of.tolist())):
            scored = chosen.take(torch.from_numpy(group_of == group) & chosen.usable)
            if not len(scored.right):
                continue
            value = float(capability_auroc(scored.confidence, scored.right, scored.known))
            groups.append(
                {
                    "group": group,
                    "n_questions": scored.n_questions,
                    "n_answers": len(scored.right),
                    "n_right": int(scored.right.sum()),
                    "value": None if value != value else value,
                    "auroc": self._auroc(scored),
                }
            )
        return groups

    def _auroc(self, scored: Scored) -> Mapping[str, Any] | None:
        """Return the AUROC with its interval.

        Returns None if too few questions have right answers, or too few have wrong answers.
        """
        scored = scored.take(scored.usable)
        assert scored.question is not None
        if min(len(scored.question[scored.right == grade].unique()) for grade in (0, 1)) < LEAST_OF_A_CLASS:
            return None
        return estimate(scored, "auroc", self._n_resamples, self._seed)


def _share_of_pairs(scored: Scored, stratum: Tensor) -> float | None:
    """Return the fraction of (right, wrong) pairs of answers that share a stratum; None if there are no pairs."""
    members = (stratum[scored.usable & (scored.right == grade)] for grade in (0, 1))
    wrong, right = (torch.bincount(strata, minlength=int(stratum.max()) + 1) for strata in members)
    n_pairs = int(wrong.sum()) * int(right.sum())
    return float((wrong * right).sum()) / n_pairs if n_pairs else None


def signals_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render the record as a Markdown page. `plots` contains the names of the plots."""
    roles = ("best", "reference", "control")
    rows = sorted(record["rows"], key=lambda row: (row["name"] != record["chosen"], roles.index(row["role"])))
    verdict, template = signals_verdict(record), "training_free/signals.md.j2"
    return render(template, record=record, rows=rows, verdict=verdict, length=LENGTH, truncated=TRUNCATED, plots=plots)


def signals_verdict(record: dict[str, Any]) -> str:
    """Render a short summary of the chosen score's test result."""
    chosen = next(row for row in record["rows"] if row["name"] == record["chosen"])
    return render("training_free/verdict.md.j2", record=record, chosen=chosen, length=LENGTH, level=LEVEL)
