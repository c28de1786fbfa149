"""Probe that averages ridge regressions, each of which reads one layer."""

import torch
from torch import Tensor

from probes.ridge import Ridge


class LayerAverage(Ridge):
    """Average of ridge regressions on the upper half of the layers, one regression per layer.

    The regressions predict the expected accuracy p̂ and have the same L2 penalty. There is one average per position,
    and the best one is chosen.

    Args:
        l2, calibrator: See `Ridge`.
    """

    name = "layer_average"

    def make_inputs(self, names: list[str]) -> list[tuple[int, ...]]:
        """Return the indices of the features in each input.

        The first inputs contain a single feature each. They are scored but cannot be chosen. Then comes one input per
        position, with that position's features from the upper half of the layers.
        """
        of_position: dict[str, list[int]] = {}
        for feature, name in enumerate(names):
            of_position.setdefault(name.partition("/")[2], []).append(feature)
        self.n_not_chosen = len(names)
        # `names` are ordered by layer
        averages = [tuple(features[len(features) // 2 :]) for features in of_position.values()]
        return [*super().make_inputs(names), *averages]

    def input_scores(self, scores: Tensor) -> Tensor:
        """See `Directions.input_scores`."""
        averages = [scores[:, :, list(average)].mean(2, keepdim=True) for average in self.inputs[self.n_not_chosen :]]
        return torch.cat([scores, *averages], 2)
