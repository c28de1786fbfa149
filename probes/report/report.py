"""Report of a fitted probe: its record, Markdown page, plots, predictions and saved files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from matplotlib.figure import Figure
from torch import Tensor

from datamodules.features import FeatureDataModule
from extract.errors import InputError
from extract.sampling.prior import Prior, fit_prior
from probes.baselines.registry import BASELINES, available, confidence, counts, is_half
from probes.baselines.scores import mean_accuracy, outside_test
from probes.fitting.backoff import backed_off, fit_novelty
from probes.fitting.module import ProbeModule
from probes.registry import chosen_option
from probes.report import plots
from probes.report.evaluate import Scored, compare, estimate, evaluate
from probes.report.prefixes import by_fraction, length_quantiles, prefix_curves
from probes.report.results import record_header, write_files
from probes.report.templates import COLUMNS, interval, render
from probes.saved.artefact import ConfidenceProbe
from probes.saved.card import model_card, what_is_read
from probes.saved.distance import N_QUANTILES, START
from probes.saved.prefixes import PrefixCalibrator

#: Dict from each target to the baselines whose ROC curves are drawn.
_DRAWN = {
    "capability": ("base_rate", "length", "consistency", "max_entropy", "verbalized"),
    "response": ("base_rate", "mean_nll", "max_entropy", "p_true_answer"),
}


class Report:
    """Report of a fitted probe. The constructor scores the probe and all baselines on the test split.

    Attributes:
        target: Target of the metrics: `response` if the rows are answers, else `capability`. The probe may have been
            trained on a different target.
        confidences: Maps each method to its confidences for all rows of the store, [row]; NaN if missing. The
            confidences of the probe include the back-off (see `Novelty`).
        novelty: The fitted `Novelty` of the probe.
        novelties: Novelty of each row of the store, [row] float64; NaN outside the splits.
        methods: Maps each method to its confidences and grades on the test split.
        masked: Maps each missing baseline to the reason why it is missing.
        record: Content of report.json.
    """

    def __init__(self, module: ProbeModule, data: FeatureDataModule, seed: int, n_resamples: int = 2000) -> None:
        assert module.choice is not None
        self.module, self.data, self.choice = module, data, module.choice
        self.table, self.rows = data.table, data.question_rows
        self.target = "response" if data.scope == "sample" else "capability"
        self.masked: dict[str, str] = {}
        self.novelty = fit_novelty(module.cpu())
        probe, self.novelties = self._probe_confidences()
        self.confidences = {module.name: probe, **self._baseline_confidences()}
        self.methods = {name: self._scored(name, is_half(name)) for name in self.confidences}
        self._reference = mean_accuracy(self.table, outside_test(self.rows))
        self._resampling: dict[str, Any] = {"n_resamples": n_resamples, "seed": seed}
        self.record = self._record()

    def _probe_confidences(self) -> tuple[Tensor, Tensor]:
        """Return the probe's confidence and the novelty for each row, both [row] float64."""
        confidences, novelties = torch.full((2, len(self.data.question_of)), torch.nan, dtype=torch.float64)
        for split in self.rows:
            batch = self.data.batch(split)
            found = backed_off(self.module, self.novelty, batch.features)
            confidences[batch.row], novelties[batch.row] = found.confidence.double(), found.novelty.double()
        return confidences, novelties

    def _baseline_confidences(self) -> dict[str, Tensor]:
        """Return the confidences [row] of each available baseline, by name."""
        data, confidences = self.data, {}
        for name, baseline in BASELINES.items():
            of_answers = self.target == "response" and "sample" in baseline.scores
            of_questions = "question" in baseline.scores and not (self.target == "response" and baseline.half)
            try:
                if of_answers and available(name, data):
                    confidences[name] = confidence(name, data, "sample")(data.split_rows)
                elif of_questions and available(name, data):
                    confidences[name] = confidence(name, data)(self.rows)[data.question_of]
            except InputError as error:
                self.masked[name] = str(error)
        return confidences

    def _scored(self, name: str, half: bool) -> Scored:
        test = self.data.split_rows["test"]
        if self.target == "response":
            batch = self.data.batch("test")
            return Scored(self.confidences[name][test], batch.right, batch.known, batch.question)
        right, known = counts(self.table, half)
        return Scored(self.confidences[name][test], right[test], known[test])

    def _record(self) -> dict[str, Any]:
        module, data, choice = self.module, self.data, self.choice
        calibrator = {name: getattr(choice.calibrator, name).tolist() for name in choice.calibrator.values}
        figures, paired = {}, []
        for name, scored in self.methods.items():
            half = self.target == "capability" and is_half(name)
            unknown = self.table.held_unknown if half else self.table.unknown
            n_unknown = int(unknown[self.rows["test"].numpy()].sum())
            figures[name] = evaluate(scored, n_unknown, self._reference, **self._resampling)
            if name != module.name:
                paired += compare(module.name, name, self._scored(module.name, half), scored, **self._resampling)
        return {
            **record_header(data.store, self.table, **self._resampling),
            "target": data.target,
            "signal": data.signal,
            "pooled": None if data.pooled is None else data.pooled.to_json(),
            "chosen": {
                "layers": choice.layers,
                "position": choice.position,
                module.option: choice.value,
                "calibrator": {"kind": choice.calibrator.kind, **calibrator},
            },
            "taught": module.taught,
            "cross_fitted": module.cross_fitted,
            "warning": module.warning,
            "masked": self.masked,
            "tried": sorted(module.penalties),
            "n_questions": {split: len(rows) for split, rows in self.rows.items()},
            "n_unusable": data.n_unusable,
            "novelty": self._of_novelty(),
            **({"prefixes": by_fraction(module, data, **self._resampling)} if choice.prefixes else {}),
            "splits": {"test": {self.target: figures}},
            "paired": paired,
        }

    def _of_novelty(self) -> dict[str, Any]:
        """Return the fitted back-off weights, and summary statistics of the test rows' novelty."""
        test = self.novelties[self.data.split_rows["test"]]
        return {
            "base_rate_weight": float(self.novelty.weight),
            "broader_share": None if self.novelty.broader is None else float(self.novelty.broader.share),
            "broader_stores": [Path(store).name for store in self.data.broader],
            "test_median": float(test.median()),
            "test_novel": float((test >= START / (N_QUANTILES - 1)).double().mean()),
        }

    @property
    def figures_of(self) -> dict[str, Any]:
        """Metrics of each method on the test split."""
        return dict(self.record["splits"]["test"][self.target])

    def figures(self) -> dict[str, Figure]:
        """Draw the plots of the report and return them by file name (without extension)."""
        figures, probe = self.figures_of, self.module.name
        scored = {name: method.take(method.usable) for name, method in self.methods.items()}
        drawn = [name for name in scored if name in (probe, *_DRAWN[self.target]) and figures[name]["auroc"]]
        rows = "answers" if self.target == "response" else "questions"
        used = torch.cat(list(self.rows.values())).sort().values
        pictures = {
            "reliability": plots.reliability(probe, scored[probe], figures[probe]["ece_width"], rows=rows),
            "roc": plots.roc({name: scored[name] for name in drawn}, figures, self.target),
            "accuracy": plots.accuracy_distribution(
                torch.from_numpy(self.table.accuracy)[used], [self.table.groups[row] for row in used.tolist()]
            ),
        }
        if "prefixes" in self.record:
            pictures["prefixes"] = prefix_curves(self.record["prefixes"])
        return {**pictures, "layers": self._layers()} if self.choice.layers else pictures

    def _layers(self) -> Figure:
        """Plot the test AUROC and Brier score of the probe at every layer."""
        batch, figures = self.data.batch("test"), self.figures_of
        question = batch.question if self.target == "response" else None
        of_features = [
            Scored(confidences.double(), batch.right, batch.known, question)
            for confidences in self.module.confidences_by_feature(batch.features).T
        ]
        intervals = {
            name: [estimate(scored, name, **self._resampling) for scored in of_features] for name in ("auroc", "brier")
        }
        references = {
            name: (figures[name]["auroc"]["value"], figures[name]["brier"]["value"])
            for name in ("base_rate", "constant")
            if figures[name]["auroc"] and figures[name]["brier"]
        }
        own = figures[self.module.name]["auroc"], figures[self.module.name]["brier"]
        names = self.data.feature_names
        return plots.by_layer(self.module.name, names, intervals, self.choice.layers, own, references, self.target)

    def predictions(self) -> pa.Table:
        """Return a table of all rows with their splits, grades and confidences (null if missing)."""
        table, split_of = self.table, {int(row): split for split, rows in self.data.split_rows.items() for row in rows}
        rows = np.array(sorted(split_of))
        questions = self.data.question_of[rows].tolist()
        columns: dict[str, Any] = {
            "question_id": [table.ids[row] for row in questions],
            "split": [split_of[row] for row in rows],
            "group": [table.groups[row] for row in questions],
            "question": [table.texts[row] for row in questions],
        }
        if self.target == "response":
            columns |= {name: getattr(table.answers, name)[rows].astype(np.int64) for name in ("sample", "right")}
        else:
            columns |= {name: getattr(table, name)[rows] for name in ("right", "known", "unknown", "accuracy")}
        for name, confidences in self.confidences.items():
            columns[name] = pa.array(confidences.numpy()[rows], from_pandas=True)  # NaN becomes null
        columns["novelty"] = self.novelties.numpy()[rows]
        return pa.table(columns)

    def probe(self) -> ConfidenceProbe:
        """Return the chosen probe with its configuration and model card."""
        record, module, data = self.record, self.module, self.data
        head, decoding = module.head(), dict(record["policy"]["decoding"])
        prompt = decoding.pop("prompt")
        config = {
            "head": head.kind,
            "d_model": len(head.mean),
            "sizes": {size: getattr(head, size) for size in head.sizes},
            "name": module.name,
            "signal": data.signal,
            "layers": self.choice.layers,
            "position": self.choice.position,
            **({} if data.pooled is None else {"pooled": record["pooled"]}),
            "target": data.target,
            "taught": module.taught,
            "model": data.store.model,
            "prompt": prompt,
            "decoding": decoding,
            "calibrator": self.choice.calibrator.kind,
            **({"prior": self._prior()} if data.target == "capability" else {}),
            "training": {
                "store": record["identity"],
                "questions": data.store.identity["questions"],
                **{name: record[name] for name in ("grader", "datasets", "n_questions")},
                **({"broader": record["novelty"]["broader_stores"]} if data.broader else {}),
                "n_samples": int(torch.from_numpy(self.table.known)[module.fitted_rows().question.unique()].sum()),
                "cross_fitted": module.cross_fitted,
                module.option: self.choice.value,
            },
            "test": self.figures_of[module.name],
            "novelty": self.novelty.sizes,
            "versions": record["versions"],
        }
        prefixes = None
        if self.choice.prefixes:
            config["prefixes"] = {"lengths": length_quantiles(data)}
            prefixes = PrefixCalibrator(self.choice.prefixes, config["prefixes"]["lengths"])
        return ConfidenceProbe(head, self.choice.calibrator, config, prefixes, self.novelty, model_card(config))

    def _prior(self) -> dict[str, float]:
        """Return the concentration and diversity of a `Prior`, fitted to the validation questions."""
        rows, table = self.module.val_rows.numpy(), self.table
        columns = (table.right[rows], table.known[rows], table.wrong_classes[rows])
        fitted = fit_prior(self.module.val_confidence.numpy(), *columns)
        return dict(zip(Prior._fields[1:], fitted, strict=True))

    def write(self, folder: Path) -> dict[str, Path]:
        """Write the report, predictions, plots and probe to a folder. Return the paths of the plots, by name."""
        pictures, probe = self.figures(), self.probe()
        page = report_page(self.record, list(pictures))
        files = {"report.json": self.record, "report.md": page, "predictions.parquet": self.predictions()}
        write_files(folder, files, pictures)
        probe.save(folder / "probe")
        return {name: folder / "plots" / f"{name}.png" for name in pictures}


def report_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """Render report.json as a Markdown page. `plots` are the names of the plots on the page."""
    ((target, methods),) = record["splits"]["test"].items()
    probe, figures = next(iter(methods.items()))
    option, value = chosen_option(record["chosen"])
    return render(
        "report/report.md.j2",
        record=record,
        plots=plots,
        target=target,
        methods=methods,
        probe=probe,
        n_answers=round(figures["n_samples"] / figures["n_questions"], 1),
        features=what_is_read(record["chosen"]["layers"], record["chosen"]["position"], record["pooled"]),
        option=option,
        value=value,
        at_end=len(record["tried"]) > 1 and float(value) in (min(record["tried"]), max(record["tried"])),
        columns=[(key, label) for key, label in COLUMNS if key in figures],
    )


def summary_table(methods: dict[str, Any]) -> str:
    """Return a table of the main metrics of all methods, for the terminal."""
    first = next(iter(methods.values()))
    columns = [key for key in ("auroc", "brier", "brier_skill", "ece_width") if key in first]
    rows = [("test split, 95 % intervals", *(label for key, label in COLUMNS if key in columns))]
    rows += [(name, *(interval(figures[key]) for key in columns)) for name, figures in methods.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
