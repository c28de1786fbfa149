"""Time Lightning's `Trainer.fit` against a plain loop, for linear probes on all layers.

Both process the same batches in the same order, and must end with equal weights.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch

from benchmarks.quality import default_data
from benchmarks.result import alternating, report
from datamodules import FeatureDataModule
from probes.fitting.quiet import quiet_lightning
from probes.linear import Linear

BAR = 1.3
VALIDATE_EVERY = 10


class Unlogged(Linear):
    """Linear probe without logging."""

    def log(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def log_dict(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def fit(data: FeatureDataModule, epochs: int) -> Linear:
    """Run `Trainer.fit` with all optional features disabled."""
    L.seed_everything(0, verbose=False)
    module = Linear()
    trainer = L.Trainer(
        max_epochs=epochs,
        check_val_every_n_epoch=VALIDATE_EVERY,
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data)
    return module


def loop(data: FeatureDataModule, epochs: int, device: torch.device) -> Linear:
    """Run the training and validation steps of `fit` in a plain loop."""
    L.seed_everything(0, verbose=False)
    module = Unlogged()
    batches, validation = data.train_dataloader(), data.val_dataloader()
    run = SimpleNamespace(datamodule=data, estimated_stepping_batches=epochs * len(batches), sanity_checking=False)
    module.trainer = run  # type: ignore[assignment]  # it has the epoch and the data, which is all that is needed
    module.setup("fit")
    module.to(device)
    configured: Any = module.configure_optimizers()
    optimizer, scheduler = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    for epoch in range(1, epochs + 1):
        for place, batch in enumerate(batches):
            optimizer.zero_grad()
            module.training_step(batch.to(device), place).backward()
            optimizer.step()
            scheduler.step()
        if epoch % VALIDATE_EVERY == 0:
            with torch.no_grad():
                for place, batch in enumerate(validation):
                    module.validation_step(batch.to(device), place)
                module.on_validation_epoch_end()
        module.on_train_epoch_end()
    module.on_train_end()
    return module


def main() -> None:
    """Print the ratio of the two training times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=144)
    options = parser.parse_args()
    quiet_lightning()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = default_data()
    data.recipe, data.batch_size = None, options.batch_size  # the store need not be checked
    one, other = fit(data, options.epochs), loop(data, options.epochs, device)
    difference = float((one.weight.detach().cpu() - other.weight.detach().cpu()).abs().max())
    ratio, with_trainer, without = alternating(
        lambda: fit(data, options.epochs), lambda: loop(data, options.epochs, device), options.pairs
    )
    batches = data.train_dataloader()
    report(
        "trainer",
        ratio,
        f"≤ {BAR} of the time, the same weights",
        ratio <= BAR and difference < 1e-6 and options.batch_size >= 128,
        seconds_trainer=with_trainer,
        seconds_loop=without,
        largest_difference_of_weights=difference,
        n_features=len(data.feature_names),
        rows=len(data.batch("train").row),
        batch=len(next(iter(batches)).row),
        steps=options.epochs * len(batches),
    )


if __name__ == "__main__":
    main()
