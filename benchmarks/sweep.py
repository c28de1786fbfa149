"""Time a joint fit of all layers against a separate fit of each layer.

Lightning's trainer fits the linear probe with five penalties and a batch size of 64. Layers whose hidden states do not
vary between questions are included only in the joint fit. On a GPU, the joint fit is also compared with the fit of a
single layer.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.quality import default_data
from benchmarks.result import alternating, report
from benchmarks.trainer import fit
from datamodules import FeatureDataModule
from probes.fitting.quiet import quiet_lightning

BAR, BAR_OVER_ONE = 0.25, 1.5


def one_layer(data: FeatureDataModule, place: int) -> FeatureDataModule:
    """Return a datamodule with the same rows and targets, but only one layer."""
    layer = int(data.feature_names[place].split("/")[0])
    single = FeatureDataModule(store=data.store_path, layers=[layer], batch_size=data.batch_size)
    single.setup()
    return single


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    options = parser.parse_args()
    quiet_lightning()
    data = default_data()
    data.recipe, data.batch_size = None, options.batch_size  # the store need not be checked
    varies = data.batch("train").features.std(0).amax(-1) > 0
    singles = [one_layer(data, place) for place in varies.nonzero()[:, 0].tolist()]
    seconds_each: list[float] = []

    def separately() -> None:
        for single in singles:
            start = time.perf_counter()
            fit(single, options.epochs)
            seconds_each.append(time.perf_counter() - start)

    ratio, together, separate = alternating(lambda: fit(data, options.epochs), separately, options.pairs, warm=1)
    over_one = together / statistics.median(seconds_each)
    cuda = torch.cuda.is_available()
    report(
        "sweep",
        ratio,
        f"≤ {BAR} of the time" + (f", ≤ {BAR_OVER_ONE} of one layer's fit" if cuda else ""),
        ratio <= BAR and (not cuda or over_one <= BAR_OVER_ONE),
        seconds_together=together,
        seconds_separately=separate,
        over_one_layer=over_one,
        layers_together=len(data.feature_names),
        layers_separately=len(singles),
        rows=len(data.batch("train").row),
        batch=len(next(iter(data.train_dataloader())).row),
        epochs=options.epochs,
    )


if __name__ == "__main__":
    main()
