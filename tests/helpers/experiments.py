"""Helpers for short runs of `train.py`."""

from __future__ import annotations

from pathlib import Path

import train

ROOT = Path(__file__).parents[2]


QUICK = ["--data.recipe=null", "--data.grader=planted", "--trainer.max_epochs=10", "--n_resamples=20"]


def experiment(store: Path, tmp_path: Path, *more: str) -> Path:
    return train.run([f"--data.store={store}", f"--runs={tmp_path / 'runs'}", *QUICK, *more])
