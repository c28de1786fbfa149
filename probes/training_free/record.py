"""A grid as one record, for machines: what was chosen on validation, how it does on the test questions, and against what."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from probes.metrics.intervals import Interval, WeightedMetric, bootstrap, paired_bootstrap
from probes.metrics.significance import bootstrap_p, holm
from probes.report.evaluate import Scored, metric_of, usable
from probes.report.results import record_header
from probes.training_free.clustered_auroc import LEAST_OF_A_CLASS, clustered
from probes.training_free.correction import max_t
from probes.training_free.grid import PARTS, Grid

LEVEL = 0.05
#: Lengths of one stratum differ by less than this factor.
LENGTH_RATIO = 1.25
#: Controls, which look at no signal.
LENGTH, TRUNCATED = "answer length", "truncated"


def grid_record(grid: Grid, n_resamples: int, seed: int) -> dict[str, Any]:
    """Everything that a grid says beside its table.

    Args:
        grid: The grid.
        n_resamples: Resamples behind each interval; p-values take five times as many.
        seed: Seed of the resamples.

    Returns:
        ``chosen``, the score that validation chose; ``rows``, the chosen one of each family, mean token entropy and the
        controls; ``tests`` of the chosen one against others; ``groups``, the chosen one by group of questions; ``grid``, what
        the corrected p-values of all scores say; counts; and ``masked``, what is left out and why.
    """
    return _Tested(grid, n_resamples, seed).record()


def length_stratum(n_tokens: Tensor) -> Tensor:
    """[answer] int64, equal for answers that are paired as equally long: the same n of up to 5 tokens, then within 25 %."""
    return (n_tokens.clamp_min(1).double().log() / math.log(LENGTH_RATIO) + 1e-9).floor().long()


class _Tested:
    """The test answers with the scores that are reported."""

    def __init__(self, grid: Grid, n_resamples: int, seed: int) -> None:
        self._grid, self._n_resamples, self._seed = grid, n_resamples, seed
        self._part = grid.parts["test"]
        rows = self._part.row
        self._classes = self._part.right, ~self._part.right
        self._cut = torch.from_numpy(grid.table.answers.truncated)[rows]
        self._stratum = length_stratum(grid.n_tokens[rows])
        self._chosen, self._reference = grid.chosen, grid.reference
        families = grid.of_families()
        self._best = list(families.values())
        self._without = {name.family for name in grid.names} - set(families)
        reported = list(self._best)
        if self._reference is not None and self._reference not in reported:
            reported.append(self._reference)
        self._scores = {str(grid.names[row]): grid.scores[row].double() for row in reported}
        self._rows = {str(grid.names[row]): row for row in reported}
        self._longer_is_wrong, length = self._length()
        self._scores[LENGTH] = length
        if 0 < int(self._cut.sum()) < len(self._cut):
            self._scores[TRUNCATED] = -self._cut.double()

    def _length(self) -> tuple[bool, Tensor]:
        """Whether longer answers are wrong more often on validation, and log n of the test answers, turned accordingly."""
        longer = -self._grid.n_tokens.double().log()
        longer[self._grid.n_tokens == 0] = torch.nan
        val = self._grid.parts["val"]
        on_val = clustered(longer[None, val.row], val.right, val.question, val.n_questions).auroc
        wrong = not float(on_val[0]) < 0.5
        return wrong, longer[self._part.row] * (1 if wrong else -1)

    def record(self) -> dict[str, Any]:
        """See `grid_record`."""
        grid = self._grid
        p_values = max_t(
            torch.stack(list(self._scores.values())),
            self._part.right,
            self._part.question,
            self._part.sample,
            5 * self._n_resamples,
            self._seed,
        )
        rows = [
            self._row(name, p)
            for name, p in zip(tqdm(self._scores, desc="figures", unit=" scores"), p_values.tolist(), strict=True)
        ]
        return {
            **record_header(grid.store, grid.table, self._seed, self._n_resamples),
            "parts": {name: self._counts(name) for name in PARTS},
            "n_questions_left_out": int((grid.table.known < 2).sum()),
            "longer_is_wrong": self._longer_is_wrong,
            "chosen": str(grid.names[self._chosen]),
            "reference": None if self._reference is None else str(grid.names[self._reference]),
            "rows": rows,
            "tests": self._tests(),
            "groups": self._groups(),
            "grid": self._overall(),
            "masked": {
                **grid.masked,
                **dict.fromkeys(
                    self._without,
                    "none of its scores varies, or none is another than without weights, on the validation answers",
                ),
            },
        }

    def _counts(self, name: str) -> dict[str, int]:
        part = self._grid.parts[name]
        return {
            "n_questions": part.n_questions,
            "n_answers": len(part.row),
            "n_right": int(part.right.sum()),
            "n_unknown": part.n_unknown,
            "n_truncated": int(self._grid.table.answers.truncated[part.row.numpy()].sum()),
            "n_empty": int((self._grid.n_tokens[part.row] == 0).sum()),
        }

    def _row(self, name: str, p: float) -> dict[str, Any]:
        """How a reported score does on the test answers: all, those that were not cut, and pairs of equal length."""
        score, row = self._scores[name], self._rows.get(name)
        every = torch.ones(len(score), dtype=torch.bool)
        figures = {
            "auroc": self._auroc(score, every),
            "uncut": self._auroc(score, ~self._cut),
            "equal_length": self._auroc(score, every, self._stratum),
            "p_corrected": None if p != p else p,
            "n_answers": int(score.isfinite().sum()),
            "share_of_pairs": self._share_of_pairs(score),
        }
        if row is None:
            return {"name": name, "role": "control", "family": None, "half": False, "auroc_val": None, **figures}
        one = self._grid.names[row]
        told = {
            "name": name,
            "family": one.family,
            "role": "best" if row in self._best else "reference",
            **one._asdict(),
            "half": one.half,
        }
        return {**told, "auroc_val": float(self._grid.found["val"].auroc[row]), **figures}

    def _scored(self, score: Tensor, kept: Tensor, stratum: Tensor | None = None) -> Scored:
        known, part = torch.ones(len(score)), self._part
        scored = Scored(score, part.right.double(), known, part.question, stratum)
        return scored.take(kept & usable(scored, "response"))

    def _auroc(self, score: Tensor, kept: Tensor, stratum: Tensor | None = None) -> Interval | None:
        """AUROC with its interval; None with right or wrong answers to a few questions only, of which resamples say too little."""
        scored = self._scored(score, kept, stratum)
        of_class = [len(self._part.question[kept & score.isfinite() & kind].unique()) for kind in self._classes]
        if min(of_class) < LEAST_OF_A_CLASS:
            return None
        return bootstrap(self._metric(scored), scored.n_questions, self._n_resamples, self._seed)

    @staticmethod
    def _metric(scored: Scored) -> WeightedMetric:
        return metric_of(scored, "auroc", 0.5, "response")

    def _share_of_pairs(self, score: Tensor) -> float | None:
        """Share of the pairs of a right and a wrong answer that are equally long."""
        there = score.isfinite()
        right, stratum = self._part.right[there], self._stratum[there]
        of_class = [torch.bincount(stratum[kind], minlength=int(stratum.max()) + 1) for kind in (right, ~right)]
        pairs = int(right.sum()) * int((~right).sum())
        return float((of_class[0] * of_class[1]).sum()) / pairs if pairs else None

    def _tests(self) -> list[dict[str, Any]]:
        """The chosen score against length and mean token entropy, and what takes further answers against the chosen score."""
        chosen = str(self._grid.names[self._chosen])
        pairs = [(chosen, LENGTH)]
        if self._reference is not None and self._reference != self._chosen:
            pairs.append((chosen, str(self._grid.names[self._reference])))
        pairs += [(name, chosen) for name, row in self._rows.items() if self._grid.names[row].half]
        tests: list[dict[str, Any]] = []
        for a, b in pairs:
            both = self._scores[a].isfinite() & self._scores[b].isfinite()
            first, second = (self._scored(self._scores[name], both) for name in (a, b))
            ours, theirs = self._metric(first), self._metric(second)
            n = first.n_questions
            difference = (
                paired_bootstrap(ours, theirs, n, n_resamples=self._n_resamples, seed=self._seed) if n else None
            )
            if difference is not None:
                p = bootstrap_p(ours, theirs, n, 5 * self._n_resamples, self._seed)
                tests.append({"a": a, "b": b, "n_questions": n, "n_answers": int(both.sum()), **difference, "p": p})
        corrected = holm(
            torch.tensor([torch.nan if one["p"] is None else one["p"] for one in tests], dtype=torch.float64)
        )
        return [{**one, "p_holm": None if p != p else p} for one, p in zip(tests, corrected.tolist(), strict=True)]

    def _groups(self) -> list[dict[str, Any]]:
        """The chosen score among the answers to the questions of each group."""
        score = self._scores[str(self._grid.names[self._chosen])]
        table, rows = self._grid.table, self._part.row
        of_answer = [table.groups[question] for question in table.answers.question[rows.numpy()]]
        groups = []
        for group in sorted(set(of_answer)):
            own = torch.tensor([one == group for one in of_answer]) & score.isfinite()
            if not own.any():
                continue
            scored = self._scored(score, own)
            value = float(self._metric(scored)(torch.ones(1, scored.n_questions, dtype=torch.float64)))
            groups.append(
                {
                    "group": group,
                    "n_questions": scored.n_questions,
                    "n_answers": int(own.sum()),
                    "n_right": int(scored.right.sum()),
                    "value": None if value != value else value,
                    "auroc": self._auroc(score, own),
                }
            )
        return groups

    def _overall(self) -> dict[str, int]:
        """How many scores the corrected p-values tell from ½, on either side."""
        p, auroc = self._grid.p, self._grid.found["test"].auroc
        sure = p < LEVEL
        return {
            "n_scores": len(p),
            "n_tested": int(p.isfinite().sum()),
            "n_above": int((sure & (auroc > 0.5)).sum()),
            "n_below": int((sure & (auroc < 0.5)).sum()),
        }
