"""Standardisation of features."""

from collections.abc import Sequence

import torch
from torch import Tensor

from extract.errors import InputError


def standardiser(features: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the mean and the standard deviation of the rows, both [feature, d_model].

    The standard deviation of a constant coordinate is set to infinity.
    """
    deviation, mean = zip(*(torch.std_mean(rows.double(), 0) for rows in features.unbind(1)), strict=True)
    low, high = features.aminmax(dim=0)
    return rounded(torch.stack(mean), torch.stack(deviation), torch.maximum(-low, high))


def rounded(mean: Tensor, deviation: Tensor, largest: Tensor) -> tuple[Tensor, Tensor]:
    """Round moments to float32, and set the standard deviation of constant coordinates to infinity.

    `largest` is the largest absolute value of each coordinate.
    """
    varies = deviation > 1e-6 * largest.clamp_min(1e-12)
    return mean.float(), torch.where(varies, deviation, torch.inf).float()


def check_scale(scale: Tensor, names: Sequence[str]) -> None:
    """Raise an InputError if all coordinates are constant, that is, if `scale` [feature, d_model] is infinite."""
    if scale.isinf().all():
        raise InputError(
            "Expected the features to vary within the training split, but all features, including "
            f"{', '.join(names[:3])}, are constant. Choose a different signal, layer or position."
        )
