"""Test whether the latent probe recovers the spread of simulated answers, and whether it warns of a collapse.

A question's hidden state is a noisy linear map of eight traits. The embeddings of its answers scatter around a
direction on the unit sphere. Their spread is a nonlinear function of two traits. In the `told` regime, the direction
also depends on the traits. In `untold`, the directions are independent of the traits and far apart, as in a real store.
The result is the rank correlation between the probe's score and the negated true spread on unseen questions. The lowest
value over all simulations is reported.
"""

from __future__ import annotations

import time

from benchmarks.result import report
from tests.helpers.latent_simulation import fit, forced, simulate


def main() -> None:
    """Run the benchmark and print its results."""
    ranks: dict[str, list[float]] = {}
    false_alarms = 0
    start = time.perf_counter()
    for told in (True, False):
        for seed in range(3):
            data = simulate(told, seed)
            regime = "told" if told else "untold"
            for hierarchical in (True, False):
                fitted = fit(data, hierarchical)
                ranks.setdefault(f"{regime}{'' if hierarchical else ', without u'}", []).append(
                    round(fitted.rank(data), 3)
                )
                false_alarms += hierarchical and fitted.collapsed is not None
    seconds = time.perf_counter() - start
    said = {name: fitted.collapsed for name, fitted in forced(simulate(False, 0)).items()}
    lowest = min(ranks["told"] + ranks["untold"])
    report(
        "latent",
        lowest,
        "rank correlation with the true spread at least 0.8; a warning for every forced collapse and for no other fit",
        lowest >= 0.8 and None not in said.values() and not false_alarms,
        ranks=ranks,
        collapses=said,
        false_alarms=false_alarms,
        seconds_of_12_fits=round(seconds, 1),
    )


if __name__ == "__main__":
    main()
