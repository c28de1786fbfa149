"""Pooling methods, which reduce the token values of each answer to one number."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from extract.errors import InputError, nearest
from extract.registry import Registry
from extract.signals.padding import Padded, over_rows
from extract.signals.registry import signals_of
from extract.store.ragged import Ragged


def _max(rows: Padded) -> Tensor:
    return rows.u.masked_fill(~rows.there, -torch.inf).amax(-1)


def _std(rows: Padded) -> Tensor:
    """Standard deviation with divisor n − 1; 0 for one value."""
    away = (rows.u - rows.mean[..., None]).masked_fill(~rows.there, 0.0)
    return (away.square().sum(-1) / (rows.n - 1).clamp_min(1)).sqrt()


def _top(rows: Padded, percent: int) -> Tensor:
    """Mean of the largest `percent` % of each row's values. At least one value is included."""
    k = _share(rows.n, percent)
    kept = (rows.step >= (rows.n - k)[:, None]) & rows.there
    return rows.ascending[0].masked_fill(~kept, 0.0).sum(-1) / k


def _quantile(rows: Padded, percent: int) -> Tensor:
    """Linearly interpolated quantile, as in `torch.quantile`."""
    place = percent / 100 * (rows.n - 1)
    below = place.floor().long()
    low, high = rows.at(below), rows.at(torch.minimum(below + 1, rows.n - 1))
    return low + (place - below) * (high - low)


def _weighted_std(rows: Padded) -> Tensor:
    """Standard deviation √(Σ w (u − m)² / Σ w) of values u with weights w and weighted mean m."""
    away = (rows.u - rows.weighted_mean[..., None]).square()
    return ((rows.w * away).sum(-1) / rows.total).sqrt()


def _weighted_top(rows: Padded, percent: int) -> Tensor:
    """Weighted mean of the `percent` % of tokens with the largest weights. At least one token is included."""
    weights, values = rows.by_weight
    weights = weights.masked_fill(rows.step >= _share(rows.n, percent)[:, None], 0.0)
    return (weights * values).sum(-1) / weights.sum(-1)


def _weighted_quantile(rows: Padded, percent: int) -> Tensor:
    """Smallest value v such that the values ≤ v have at least `percent` % of the total weight."""
    c = rows.weights_ascending
    place = (c < percent / 100 * c[..., -1:]).sum(-1)
    return rows.at(torch.minimum(place, rows.n - 1))


def _share(n: Tensor, percent: int) -> Tensor:
    """Return `percent` % of n [row], rounded down but at least 1."""
    return (n * percent // 100).clamp_min(1)


class Pooling(NamedTuple):
    """Unweighted and weighted forms of a pooling method. Both return one number per row, [..., row]."""

    plain: Callable[[Padded], Tensor]
    weighted: Callable[[Padded], Tensor]

    def __call__(self, rows: Padded) -> Tensor:
        """Pool the rows."""
        if not rows.has_weights:
            return self.plain(rows)
        given, weighted = rows.total > 0, self.weighted(rows)
        return weighted if bool(given.all()) else torch.where(given, weighted, self.plain(rows))


_QUANTILES = (25, 50, 75, 90, 99)

POOLINGS: Registry[Pooling] = Registry(
    "pooling",
    {
        "mean": Pooling(attrgetter("mean"), attrgetter("weighted_mean")),
        "max": Pooling(_max, partial(_weighted_quantile, percent=100)),
        "std": Pooling(_std, _weighted_std),
        **{f"top_{p}": Pooling(partial(_top, percent=p), partial(_weighted_top, percent=p)) for p in (5, 10, 20, 40)},
        **{f"q{p}": Pooling(partial(_quantile, percent=p), partial(_weighted_quantile, percent=p)) for p in _QUANTILES},
    },
)


def pool(values: Ragged, how: str, weights: Ragged | None = None) -> Tensor:
    """Pool the tokens of each row into one number.

    Args:
        values: Values of the tokens, [sum of lengths, …]. Trailing axes are pooled separately.
        how: Name of the pooling method, one of `POOLINGS`.
        weights: Non-negative weights of the same tokens. Trailing axes are broadcast. A row whose weights sum to 0 is
            pooled without weights.

    Returns:
        [row, …] float32. NaN if a row has no tokens, or if a value or weight is not finite.

    Raises:
        InputError: If the name is unknown, a weight is negative, or there are not as many weights as values.

    >>> pool(Ragged.of([torch.tensor([1.0, 2.0, 6.0]), torch.tensor([])]), "mean")
    tensor([3., nan])
    """
    return pool_each(values, [how], weights)[how]


def pool_each(values: Ragged, hows: Sequence[str], weights: Ragged | None = None) -> dict[str, Tensor]:
    """Apply several pooling methods, and return a dict from name to result."""
    chosen = {how: POOLINGS[how] for how in hows}
    return over_rows(values, hows, lambda rows: {how: pooling(rows) for how, pooling in chosen.items()}, weights)


def windows(values: Ragged, n_windows: int) -> Tensor:
    """Split each row into `n_windows` windows, as in `numpy.array_split`, and average each window.

    If a row has fewer tokens than windows, some windows share a token.

    Returns:
        [row, …, window] float32. Values are NaN in the same cases as for `pool`.

    >>> windows(Ragged.of([torch.tensor([1.0, 2.0, 6.0]), torch.tensor([5.0])]), 2)
    tensor([[1.5000, 6.0000],
            [5.0000, 5.0000]])
    """

    def means(rows: Padded) -> dict[str, Tensor]:
        until = torch.cat([torch.zeros_like(rows.u[..., :1]), rows.u.cumsum(-1)], -1)
        size, longer = rows.n // n_windows, rows.n % n_windows
        found = {}
        for i in range(n_windows):
            start, stop = (size * edge + longer.clamp_max(edge) for edge in (i, i + 1))
            token = rows.n * i // n_windows  # for rows with fewer tokens than windows
            start, stop = (torch.where(size > 0, a, b) for a, b in ((start, token), (stop, token + 1)))
            ends = [until.gather(-1, edge.expand(until.shape[:-1])[..., None])[..., 0] for edge in (start, stop)]
            found[str(i)] = (ends[1] - ends[0]) / (stop - start)
        return found

    return torch.stack(list(over_rows(values, list(map(str, range(n_windows))), means).values()), -1)


#: Names of the features of an entropy curve, and of the additional features that require weights.
PEAKS = (
    "log_count density mean_peak max mean median std q75 q90 max_jump log_n".split(),
    "log_critical critical_density critical_mean critical_max w_mean w_q75 w_q90 w_std w_max".split(),
)


def peak_features(entropy: Ragged, threshold: float = 0.5, weights: Ragged | None = None) -> dict[str, Tensor]:
    """Compute features that describe the shape of each row's entropy curve.

    A peak is a token whose entropy exceeds `threshold`. A critical token is a peak whose weight exceeds the mean weight
    of the row. Counts are returned as log(1 + count). Means and maxima over peaks or critical tokens are 0 if there are
    none.

    Args:
        entropy: Entropies of the tokens, [sum of lengths] in nats.
        threshold: Entropy above which a token is a peak, in nats.
        weights: Non-negative weights of the same tokens. Without them, only the features in ``PEAKS[0]`` are computed.

    Returns:
        Dict from the names in `PEAKS` to tensors [row] float32. Values are NaN in the same cases as for `pool`.
    """

    def features(rows: Padded) -> dict[str, Tensor]:
        peaks = (rows.u > threshold) & rows.there
        jumps = rows.u.diff(dim=-1).abs().masked_fill(~rows.there[:, 1:], 0.0)
        max_jump = torch.nn.functional.pad(jumps, (1, 0)).amax(-1)  # 0 for one token
        pooled = [POOLINGS[how].plain(rows) for how in ("max", "mean", "q50", "std", "q75", "q90")]
        shape = [*_heights(rows, peaks)[:3], *pooled, max_jump, rows.n.double().log()]
        if weights is None:
            return dict(zip(PEAKS[0], shape, strict=True))
        # a small tolerance, because rounding can lift equal weights above their mean
        critical = peaks & (rows.w * rows.n[:, None] > rows.total[..., None] * (1 + 1e-9))
        weighted = [POOLINGS[how](rows) for how in ("mean", "q75", "q90", "std", "max")]
        return dict(zip(PEAKS[0] + PEAKS[1], [*shape, *_heights(rows, critical), *weighted], strict=True))

    return over_rows(entropy, PEAKS[0] if weights is None else PEAKS[0] + PEAKS[1], features, weights)


def _heights(rows: Padded, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Summarise the values of the tokens in the mask `chosen` [row, token].

    Returns log(1 + count), the count as a fraction of the row's tokens, the mean and the maximum, each [row].
    """
    count = chosen.sum(-1)
    high = rows.u.masked_fill(~chosen, 0.0)
    return count.double().log1p(), count / rows.n, high.sum(-1) / count.clamp_min(1), high.amax(-1)


WEIGHTS = {"entropy": ("tokens", "entropy"), "prob": ("tokens", "one_minus_pmax")}


def weight_of(name: str) -> tuple[str, str]:
    """Return the signal and the name of the token weights. The name is the part of the key after ``layer/``.

    Args:
        name: One of `WEIGHTS`, or SIGNAL/REST. SIGNAL is an influence signal, and REST is the part of the key after
            ``layer/``. An example is ``rollout/norm_element_mean_token``.

    Raises:
        InputError: If the name is unknown.

    >>> weight_of("prob")
    ('tokens', 'one_minus_pmax')
    """
    if name in WEIGHTS:
        return WEIGHTS[name]
    signal, _, position = name.partition("/")
    influences = signals_of("sample", weights=True)
    if signal not in influences or not position:
        known = [*WEIGHTS, *(f"{influence}/POSITION" for influence in influences)]
        hint = "" if signal in influences else nearest(signal, [*WEIGHTS, *influences])
        raise InputError(
            f"Expected `weights` to be one of {', '.join(known)} (for example, rollout/norm_element_mean_token), but "
            f"got {name!r}.{hint}"
        )
    return signal, position
