"""Feature vectors of token signals, read from a store or computed by a model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.pooling import PEAKS, POOLINGS, WEIGHTS, peak_features, pool_each, windows
from extract.signals.registry import SIGNALS, signals_of
from extract.store.shards import Scope

#: Answer prefixes and their fractions q. A prefix contains the first ⌈q n⌉ of n content tokens.
PREFIXES = {"prefix_25": 0.25, "prefix_50": 0.5, "prefix_75": 0.75}
DEFAULT_POOLING = ("mean", "std", "max")
#: Pooling that supports only token entropies. See `peak_features`.
DISTRIBUTION = "distribution"
_WINDOWS = re.compile(r"windows_([1-9]|[1-5][0-9]|6[0-4])")
_KEY = re.compile(r"([a-z_]+)/((?:0|[1-9][0-9]{0,4})/([A-Za-z0-9_]+))")


@dataclass(frozen=True)
class TokenFeatures:
    """Token signals that are combined into one feature vector per row.

    Attributes:
        keys: Keys of the form ``signal/layer/name``.
        pooling: Names of the pooling methods for an answer's tokens; empty for questions.
        weights: Key of the token weights, or None.

    Raises:
        InputError: If a key does not support a pooling method, or if `weights` is given for a method without a weighted
            form.
    """

    keys: tuple[str, ...]
    pooling: tuple[str, ...] = ()
    weights: str | None = None

    def __post_init__(self) -> None:
        others = [key for key in self.keys if key.split("/")[::2] != ["tokens", "entropy"]]
        if DISTRIBUTION in self.pooling and others:
            raise InputError(
                f"Expected `pooling` {DISTRIBUTION} to be used only with the feature tokens/entropy, but got the "
                f"feature {others[0]!r}."
                " Pass --data.signal=tokens --data.positions='[entropy]', or --data.join='[tokens/entropy]'."
            )
        windowed = next(filter(_WINDOWS.fullmatch, self.pooling), None)
        if windowed is not None and self.weights is not None:
            raise InputError(
                f"Expected no `weights` for `pooling` {windowed}, but got {self.weights!r}. "
                "This pooling method has no weighted form. Leave out `weights`."
            )

    @property
    def signals(self) -> list[str]:
        """Names of the signals to read."""
        return list(dict.fromkeys(key.split("/")[0] for key in (*self.keys, self.weights) if key is not None))

    @property
    def names(self) -> list[str]:
        """Names of the features, each composed of a key and a pooling method."""
        if not self.pooling:
            return list(self.keys)
        return [f"{key} {name}" for key in self.keys for pooling in self.pooling for name in self._numbers(pooling)]

    def _numbers(self, pooling: str) -> list[str]:
        if pooling == DISTRIBUTION:
            return PEAKS[0] if self.weights is None else PEAKS[0] + PEAKS[1]
        match = _WINDOWS.fullmatch(pooling)
        return [f"{pooling}_{i}" for i in range(int(match[1]))] if match else [pooling]

    def vector(self, read: Callable[[str, str], Any]) -> Tensor:
        """Compute the features, [row, feature] float32. A row without tokens or with a missing value is NaN.

        Args:
            read: Function of a signal's name and a key ``layer/name``. It returns a tensor [row] for questions, or a
                `Ragged` for answers.
        """
        if not self.pooling:
            return torch.stack([read(*key.split("/", 1)).float() for key in self.keys], 1)
        weights = None if self.weights is None else read(*self.weights.split("/", 1))
        columns: list[Tensor] = []
        for key in self.keys:
            values = read(*key.split("/", 1))
            plain = pool_each(values, [pooling for pooling in self.pooling if pooling in POOLINGS], weights)
            for pooling in self.pooling:
                if pooling == DISTRIBUTION:
                    columns += peak_features(values, weights=weights).values()
                elif pooling in POOLINGS:
                    columns.append(plain[pooling])
                else:
                    columns += windows(values, len(self._numbers(pooling))).unbind(1)
        return torch.stack(columns, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON record for a saved probe."""
        return {"keys": list(self.keys), "pooling": list(self.pooling), "weights": self.weights}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Build an instance from a JSON record that was checked with `is_key`, `is_pooling` and `is_weights`."""
        return cls(tuple(record["keys"]), tuple(record["pooling"]), record["weights"])


def token_signals(scope: Scope) -> list[str]:
    """Return the names of the signals with one number per token."""
    return signals_of(scope, vectors=False)


def is_key(value: Any, scope: Scope) -> bool:
    """Whether a JSON value is a token-signal key of the form ``signal/layer/name``."""
    match = _KEY.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match[1] in token_signals(scope)


def is_weights(value: Any) -> bool:
    """Whether a JSON value is a valid key for token weights."""
    if not is_key(value, "sample"):
        return False
    signal, _, name = value.split("/")
    return SIGNALS[signal].weights or (signal, name) in WEIGHTS.values()


def is_pooling(value: Any) -> bool:
    """Whether a JSON value is the name of a pooling method."""
    return isinstance(value, str) and bool(value in POOLINGS or value == DISTRIBUTION or _WINDOWS.fullmatch(value))


def check_pooling(pooling: Sequence[str]) -> None:
    """Raise an InputError if a name is unknown or repeated, or `pooling` is empty."""
    known = [*POOLINGS, DISTRIBUTION]
    for name in pooling:
        if not is_pooling(name):
            raise InputError(
                f"Expected `pooling` to be one of {', '.join(known)} or windows_N (N from 1 to 64), but got {name!r}."
                f"{nearest(name, known)}"
            )
    if not pooling or len(set(pooling)) < len(pooling):
        raise InputError(
            f"Expected `pooling` to contain at least one name and no duplicates, but got [{', '.join(pooling)}]. "
            f"To use the default, [{', '.join(DEFAULT_POOLING)}], leave out `pooling`."
        )
