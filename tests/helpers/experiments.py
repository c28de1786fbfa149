"""Helpers for short runs of `train.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import train
from probes.baselines.registry import BASELINES

ROOT = Path(__file__).parents[2]


QUICK = ["--data.recipe=null", "--data.grader=planted", "--trainer.max_epochs=10", "--n_resamples=20"]


@contextmanager
def few_baselines(*names: str) -> Iterator[None]:
    """Leave all baselines out of reports, except `constant`, `base_rate` and the named ones.

    The metrics of all baselines would take half of the time of a short run.
    """
    few = {name: BASELINES[name] for name in ("constant", "base_rate", *names)}
    with patch("probes.report.report.BASELINES", few):
        yield


def experiment(store: Path, tmp_path: Path, *more: str) -> Path:
    with few_baselines("consistency"):
        return train.run([f"--data.store={store}", f"--runs={tmp_path / 'runs'}", *QUICK, *more])
