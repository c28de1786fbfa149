"""Helpers that fit probes with a minimal trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import torch

from datamodules import FeatureDataModule
from probes.fitting.module import ProbeModule
from probes.linear import Linear


def descend(
    module: ProbeModule, data: FeatureDataModule, epochs: int, every: int, folder: Path | None = None
) -> ProbeModule:
    """Fit a probe, validate it in every `every`-th epoch, and save checkpoints if a folder is given."""
    trainer = L.Trainer(
        max_epochs=epochs,
        check_val_every_n_epoch=every,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=folder is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, data)
    return module


def fit(data: FeatureDataModule, epochs: int = 60, **options: Any) -> Linear:
    torch.manual_seed(0)
    module = Linear(**options)
    descend(module, data, epochs, every=epochs)
    return module
