"""Logging of a training run to Weights & Biases."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import wandb

from probes.saved.card import what_is_read

if TYPE_CHECKING:
    from lightning.pytorch.loggers import WandbLogger

    from probes.report.report import Report


def prepare_wandb(loggers: Sequence[WandbLogger]) -> None:
    """If there is no W&B API key, switch to offline logging and print a notice."""
    for logger in loggers:  # Lightning passes `anonymous`, which makes W&B print a warning
        logger._wandb_init.pop("anonymous", None)
    if not loggers or "WANDB_MODE" in os.environ or os.environ.get("WANDB_API_KEY"):
        return
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    if not (netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="ignore")):
        os.environ["WANDB_MODE"] = "offline"
        print("No W&B key found: logging offline. Use `wandb sync` to upload a run later.", file=sys.stderr)


def log_report(report: Report, folder: Path, pictures: dict[str, Path], loggers: Sequence[WandbLogger]) -> None:
    """Log a report to W&B. The probe's artifact is named after the probe's method and base model."""
    table, config = report.predictions(), report.probe().config
    rows = [list(row.values()) for row in table.to_pylist()]
    base, features = config["model"], what_is_read(config["layers"], config["position"], config.get("pooled"))
    val_figures = {metric.replace("/", "_"): value for metric, value in report.module.val_figures.items()}
    metadata = {
        "base_model": base["id"],
        "base_model_revision": base["revision"],
        **{key: config[key] for key in ("layers", "position", "target")},
        "store_identity": config["training"]["store"],
        **val_figures,
    }
    summary = {f"best/{metric}": value for metric, value in val_figures.items()}
    for method, figures in report.figures_of.items():
        summary |= {f"test/{method}/{key}": value["value"] for key, value in figures.items() if isinstance(value, dict)}
    for run in (logger.experiment for logger in loggers):
        images = {f"plots/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
        run.log({"predictions": wandb.Table(columns=table.column_names, data=rows), **images})
        run.summary.update(summary)
        artifact = wandb.Artifact(
            re.sub(r"[^A-Za-z0-9_.-]", "-", f"{config['name']}-{base['id']}")[:128],
            type="model",
            description=f"{config['name']} probe of {base['id']}, reads {features}",
            metadata=metadata,
        )
        artifact.add_dir(str((folder / "probe").resolve()), policy="immutable")  # without copying the files
        run.log_artifact(artifact)


@contextmanager
def closing_wandb() -> Iterator[None]:
    """Finish the W&B run, and mark it as failed if the `with` block raises an error."""
    try:
        yield
    except BaseException:
        wandb.finish(exit_code=1)
        raise
    wandb.finish()
