"""From a fitted probe to its report: report.json for machines, report.md for people, pictures, predictions, the saved probe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from datamodules import FeatureDataModule
from extract.errors import InputError
from probes.baselines.registry import (
    ANSWER_BASELINES,
    BASELINES,
    answer_confidence,
    available,
    confidence,
    counts,
    mean_accuracy,
)
from probes.fitting.calibration import Calibrator
from probes.fitting.module import ProbeModule
from probes.metrics.intervals import Interval, bootstrap
from probes.report import plots
from probes.report.evaluate import Scored, compare, evaluate, metric_of, usable
from probes.report.page import report_page
from probes.saved.artefact import ConfidenceProbe
from probes.saved.card import model_card

FORMAT_VERSION = 1
#: Baselines beside the probe in the ROC curves; the report's table has them all.
_DRAWN = {
    "capability": ("base_rate", "length", "consistency", "max_entropy", "verbalized"),
    "response": ("base_rate", "mean_nll", "max_entropy", "p_true_answer"),
}
_PACKAGES = ("lightning", "torch", "transformers", "torchmetrics", "numpy", "scikit-learn", "safetensors")


class Report:
    """Everything that a run says about its probe. The test split is scored here, once.

    Args:
        module: Fitted probe.
        data: The datamodule it was fitted on.
        seed: Seed of the run and of the resamples.
        n_resamples: Resamples of the questions behind each interval.
    """

    def __init__(self, module: ProbeModule, data: FeatureDataModule, seed: int, n_resamples: int = 2000) -> None:
        assert module.choice is not None
        self.module, self.data, self.seed, self.n_resamples = module, data, seed, n_resamples
        self.table, self.rows = data.table, data.question_rows
        #: What the figures are about: questions, whatever the probe was taught, or single answers.
        self.target = "response" if data.scope == "sample" else "capability"
        self.reference = mean_accuracy(self.table, self.rows["train"])
        self.masked: dict[str, str] = {}
        self.confidences = {module.name: self._probe_confidences(), **self._baseline_confidences()}
        self.baselines = [name for name in self.confidences if name != module.name]
        self.methods = {name: self._scored(name, self._half(name)) for name in self.confidences}
        self.record = self._record()

    def _baseline_confidences(self) -> dict[str, Tensor]:
        """[row] over the table by name, of the baselines that the store allows; of answers also those of their own."""
        data, found = self.data, {}
        for name, baseline in BASELINES.items():
            if available(name, data) and not (baseline.half and self.target == "response"):
                with self._masking(name):
                    found[name] = data.of_rows(confidence(name, data, self.rows))
        for name in ANSWER_BASELINES if self.target == "response" else ():
            if available(name, data, ANSWER_BASELINES):
                with self._masking(name):
                    found[name] = answer_confidence(name, data, data.split_rows)
        return found

    @contextmanager
    def _masking(self, name: str) -> Iterator[None]:
        """Leave a baseline out that can't be calibrated, and keep the reason."""
        try:
            yield
        except InputError as error:
            self.masked[name] = str(error)

    def _half(self, name: str) -> bool:
        return self.target == "capability" and name in BASELINES and BASELINES[name].half

    def _unknown(self, name: str) -> int:
        """Test answers whose grade is unknown, among those that a method is scored on."""
        unknown = self.table.held_unknown if self._half(name) else self.table.unknown
        return int(torch.from_numpy(unknown)[self.rows["test"]].sum())

    def _scored(self, name: str, half: bool) -> Scored:
        test = self.data.split_rows["test"]
        if self.target == "response":
            batch = self.data.batch("test")
            return Scored(self.confidences[name][test], batch.right, batch.known, batch.question)
        right, known = counts(self.table, half)
        return Scored(self.confidences[name][test], right[test], known[test])

    @torch.no_grad()
    def _probe_confidences(self) -> Tensor:
        """[row] over the table; NaN for rows that are in no split."""
        confidences = torch.full((self.data.n_rows,), torch.nan, dtype=torch.float64)
        for split in self.rows:
            batch = self.data.batch(split)
            confidences[batch.row] = self.module.cpu().predict(batch.features).double()
        return confidences

    def _record(self) -> dict[str, Any]:
        choice = self.module.choice
        assert choice is not None
        pooled = self.data.pooled
        options: dict[str, Any] = {"reference": self.reference, "n_resamples": self.n_resamples, "seed": self.seed}
        return {
            "format_version": FORMAT_VERSION,
            "identity": self.data.store.sha256,
            "datasets": sorted({question.dataset for question in self.data.store.questions}),
            "grader": self.table.grader,
            "seed": self.seed,
            "versions": {
                "confidence-probes": version("confidence-probes"),
                **{package: version(package) for package in _PACKAGES},
            },
            "target": self.data.target,
            "signal": self.data.signal,
            "pooled": None if pooled is None else pooled.to_json(),
            "chosen": {
                "layer": choice.layer,
                "position": choice.position,
                self.module.option: choice.value,
                "calibrator": {"kind": choice.calibrator.kind, **_numbers(choice.calibrator)},
            },
            "taught": self.module.taught,
            "warning": self.module.warning,
            "masked": self.masked,
            "tried": sorted(self.module.penalties),
            "n_questions": {split: len(rows) for split, rows in self.rows.items()},
            "n_unusable": self.data.n_unusable,
            "splits": {
                "test": {
                    self.target: {
                        name: evaluate(one, self._unknown(name), target=self.target, **options)
                        for name, one in self.methods.items()
                    }
                }
            },
            "paired": [row for name in self.baselines for row in self._paired(name, options)],
        }

    def _paired(self, baseline: str, options: dict[str, Any]) -> list[dict[str, Any]]:
        half, probe = self._half(baseline), self.module.name
        first, second = self._scored(probe, half), self._scored(baseline, half)
        return compare(probe, baseline, first, second, split="test", target=self.target, **options)

    @property
    def _what(self) -> str:
        """What a row is."""
        return "answers" if self.target == "response" else "questions"

    @property
    def figures_of(self) -> dict[str, Any]:
        """The figures on the test split, by method."""
        return dict(self.record["splits"]["test"][self.target])

    @torch.no_grad()
    def figures(self) -> dict[str, Any]:
        """The pictures by file name, without ending."""
        assert self.module.choice is not None
        figures = self.figures_of
        shown = {name: one.take(usable(one, self.target)) for name, one in self.methods.items()}
        probe = self.module.name
        roc_methods = {
            name: one for name, one in shown.items() if name in (probe, *_DRAWN[self.target]) and figures[name]["auroc"]
        }
        return {
            "reliability": plots.reliability(probe, shown[probe], figures[probe]["ece_width"], what=self._what),
            "roc": plots.roc(roc_methods, {name: figures[name]["auroc"] for name in roc_methods}, self.target),
            **({} if self.module.choice.layer is None else {"layers": self._layers(figures)}),
            "accuracy": plots.accuracy_distribution(
                torch.from_numpy(self.table.accuracy)[self._used()],
                [self.table.groups[i] for i in self._used().tolist()],
            ),
        }

    def _used(self) -> Tensor:
        """Rows of the question table that are in a split."""
        return torch.cat(list(self.rows.values())).sort().values

    def _layers(self, figures: dict[str, Any]) -> Any:
        batch = self.data.batch("test")
        every: dict[str, list[Interval | None]] = {"auroc": [], "brier": []}
        for of_feature in self.module.confidences_by_feature(batch.features).T:
            question = batch.question if self.target == "response" else None
            one = Scored(of_feature.double(), batch.right, batch.known, question)
            for name, intervals in every.items():
                metric = metric_of(one, name, self.reference, self.target)
                intervals.append(bootstrap(metric, one.n_questions, self.n_resamples, self.seed))
        references = {
            name: (figures[name]["auroc"]["value"], figures[name]["brier"]["value"])
            for name in ("base_rate", "constant")
            if figures[name]["auroc"] and figures[name]["brier"]
        }
        assert self.module.choice is not None
        return plots.by_layer(
            self.module.name,
            self.data.feature_names,
            every["auroc"],
            every["brier"],
            self.module.choice.name,
            references,
            self.target,
        )

    def predictions(self) -> pa.Table:
        """One row a question, or an answer: its split, counts, and every method's confidence (null where there is none)."""
        split_of = {int(row): split for split, rows in self.data.split_rows.items() for row in rows}
        used = torch.cat(list(self.data.split_rows.values())).sort().values
        questions = self.data.question_of(used).tolist()
        right, known = (count[used].tolist() for count in self.data.counts())
        columns: dict[str, Any] = {
            "question_id": [self.table.ids[row] for row in questions],
            "split": [split_of[row] for row in used.tolist()],
            "group": [self.table.groups[row] for row in questions],
            "question": [self.table.texts[row] for row in questions],
        }
        if self.target == "response":
            columns |= {"sample": self.table.answers.sample[used].tolist(), "right": right}
        else:
            columns |= {
                "right": right,
                "known": known,
                "unknown": self.table.unknown[used].tolist(),
                "accuracy": self.table.accuracy[used].tolist(),
            }
        for name, given in self.confidences.items():
            columns[name] = [None if value != value else value for value in given[used].tolist()]
        return pa.table(columns)

    def probe(self) -> ConfidenceProbe:
        """The chosen probe, ready to save."""
        policy = self.data.store.identity["policy"]
        head = self.module.head()
        decoding = {key: value for key, value in policy["decoding"].items() if key != "prompt"}
        config = {
            "head": head.kind,
            "d_model": len(head.mean),
            "sizes": {size: getattr(self.module, size) for size in head.sizes},
            "name": self.module.name,
            "signal": self.data.signal,
            "layer": self.record["chosen"]["layer"],
            "position": self.record["chosen"]["position"],
            **({} if self.data.pooled is None else {"pooled": self.data.pooled.to_json()}),
            "target": self.data.target,
            "taught": self.module.taught,
            "model": self.data.store.model,
            "prompt": policy["decoding"]["prompt"],
            "decoding": decoding,
            "calibrator": self.record["chosen"]["calibrator"]["kind"],
            "training": {
                "store": self.data.store.sha256,
                "grader": self.table.grader,
                "datasets": self.record["datasets"],
                "n_questions": self.record["n_questions"],
                "n_samples": int(torch.from_numpy(self.table.known)[self.rows["train"]].sum()),
                self.module.option: self.record["chosen"][self.module.option],
            },
            "test": self.figures_of[self.module.name],
            "versions": self.record["versions"],
        }
        assert self.module.choice is not None
        return ConfidenceProbe(head, self.module.choice.calibrator, config)

    def write(self, folder: Path) -> dict[str, Path]:
        """Write report.json, report.md, plots/, predictions.parquet and probe/ into a run's folder.

        Returns:
            The pictures' paths by name.
        """
        pictures = {}
        (folder / "plots").mkdir(parents=True, exist_ok=True)
        for name, figure in self.figures().items():
            pictures[name] = folder / "plots" / f"{name}.png"
            figure.savefig(pictures[name])
        (folder / "report.json").write_text(json.dumps(self.record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        page = report_page(self.record, self.data.store.identity["policy"], list(pictures))
        (folder / "report.md").write_text(page, encoding="utf-8")
        pq.write_table(self.predictions(), folder / "predictions.parquet")
        probe = self.probe()
        probe.save(folder / "probe", model_card(probe.config))
        return pictures


def _numbers(calibrator: Calibrator) -> dict[str, Any]:
    """A calibrator's values as JSON."""
    return {name: getattr(calibrator, name).tolist() for name in calibrator.values}
