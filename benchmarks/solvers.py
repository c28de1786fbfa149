"""Measure the time and memory of fitting ridge and logistic regressions on all layers of a large model.

There are five penalties per layer. Features and targets are random. On a GPU, the default shape is that of an
8-billion-parameter model with 20,000 questions.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.result import alternating, report
from probes.fitting import solvers
from probes.fitting.training import PENALTIES
from tests.helpers.live import peak_bytes


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    cuda = torch.cuda.is_available()
    parser.add_argument("--layers", type=int, default=33)
    parser.add_argument("--rows", type=int, default=20_000 if cuda else 2000)
    parser.add_argument("--width", type=int, default=4096 if cuda else 576)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        features = torch.randn(options.layers, options.rows, options.width)
        direction = torch.randn(options.width)
    target = (features[options.layers // 2] @ direction / options.width**0.5).sigmoid()
    actions = [
        lambda: solvers.ridge(features, target, PENALTIES),
        lambda: solvers.logistic(features, target, PENALTIES),
    ]
    _, ridge, logistic = alternating(*actions, options.pairs, warm=1)
    report(
        "solvers",
        {"ridge": ridge, "logistic": logistic},
        "seconds, no requirement",
        True,
        features_gib=features.nbytes / 2**30,
        additional_gib={
            name: peak_bytes(action) / 2**30 for name, action in zip(("ridge", "logistic"), actions, strict=True)
        },
        layers=options.layers,
        rows=options.rows,
        width=options.width,
        penalties=list(PENALTIES),
    )


if __name__ == "__main__":
    main()
