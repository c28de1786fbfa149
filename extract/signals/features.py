"""Features that a probe reads of token signals: one vector per row, the same from a store and from a model."""

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

#: Pooling of answers by default.
DEFAULT_POOLING = ("mean", "std", "max")
#: Pooling of the tokens' entropies alone, see `peak_features`.
DISTRIBUTION = "distribution"
_WINDOWS = re.compile(r"windows_([1-9]|[1-5][0-9]|6[0-4])")
_KEY = re.compile(r"([a-z_]+)/((?:0|[1-9][0-9]{0,4})/([A-Za-z0-9_]+))")


@dataclass(frozen=True)
class TokenFeatures:
    """Numbers of token signals that become one vector per row.

    Attributes:
        keys: Each a ``signal/layer/name``.
        pooling: Poolings of an answer's tokens; empty for questions, which have one number per key.
        weights: Key of the tokens' weights; None for none.

    Raises:
        InputError: If a key does not have a pooling, or weights come with a pooling that has no weighted form.
    """

    keys: tuple[str, ...]
    pooling: tuple[str, ...] = ()
    weights: str | None = None

    def __post_init__(self) -> None:
        others = [key for key in self.keys if key.split("/")[::2] != ["tokens", "entropy"]]
        if DISTRIBUTION in self.pooling and others:
            raise InputError(
                f"Expected `pooling` {DISTRIBUTION} with the entropy of the signal tokens alone, but {others[0]!r} is "
                "there too. Give --data.signal=tokens --data.positions=[entropy], or --data.join=[tokens/entropy]."
            )
        windowed = next(filter(_WINDOWS.fullmatch, self.pooling), None)
        if windowed is not None and self.weights is not None:
            raise InputError(
                f"Expected `weights` with poolings that take them, but {windowed} takes none. Leave `weights` out."
            )

    @property
    def signals(self) -> list[str]:
        """Names of the signals that are read, each once."""
        return list(dict.fromkeys(key.split("/")[0] for key in (*self.keys, self.weights) if key is not None))

    @property
    def names(self) -> list[str]:
        """Name of each number of the vector: its key, and its pooling."""
        if not self.pooling:
            return list(self.keys)
        return [f"{key} {name}" for key in self.keys for pooling in self.pooling for name in self._numbers(pooling)]

    def _numbers(self, pooling: str) -> list[str]:
        """Names of the numbers that a pooling makes of a key."""
        if pooling == DISTRIBUTION:
            return PEAKS[0] if self.weights is None else PEAKS[0] + PEAKS[1]
        match = _WINDOWS.fullmatch(pooling)
        return [f"{pooling}_{i}" for i in range(int(match[1]))] if match else [pooling]

    def vector(self, read: Callable[[str, str], Any]) -> Tensor:
        """Features [row, number] float32; NaN where a row has no tokens, or a value is missing.

        `read` is from a signal and one of its keys to its values: [row] of questions, `Ragged` of answers.
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
        """Record in a saved probe."""
        return {"keys": list(self.keys), "pooling": list(self.pooling), "weights": self.weights}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """Features of a record that was checked by `is_key`, `is_pooling` and `is_weights`."""
        return cls(tuple(record["keys"]), tuple(record["pooling"]), record["weights"])


def token_signals(scope: Scope) -> list[str]:
    """Names of the signals with one number per token of an answer, or for the first token of a question's answer."""
    return signals_of(scope, per_token=True)


def is_key(value: Any, scope: Scope) -> bool:
    """Whether any JSON value is the ``signal/layer/name`` of a token signal."""
    match = _KEY.fullmatch(value) if isinstance(value, str) else None
    return match is not None and match[1] in token_signals(scope)


def is_weights(value: Any) -> bool:
    """Whether any JSON value is a key of weights."""
    if not is_key(value, "sample"):
        return False
    signal, _, name = value.split("/")
    return SIGNALS[signal].weights or (signal, name) in WEIGHTS.values()


def is_pooling(value: Any) -> bool:
    """Whether any JSON value is the name of a pooling."""
    return isinstance(value, str) and bool(value in POOLINGS or value == DISTRIBUTION or _WINDOWS.fullmatch(value))


def check_pooling(pooling: Sequence[str]) -> None:
    """Check names of poolings.

    Raises:
        InputError: If a name is unknown or repeated, or there is none.
    """
    known = [*POOLINGS, DISTRIBUTION]
    for name in pooling:
        if not is_pooling(name):
            raise InputError(
                f"Expected `pooling` to be among {', '.join(known)}, windows_N, with N from 1 to 64, but got {name!r}."
                f"{nearest(name, known)}"
            )
    if not pooling or len(set(pooling)) < len(pooling):
        raise InputError(
            f"Expected `pooling` to name at least one, each only once, but got [{', '.join(pooling)}]. Leave it out "
            f"for {', '.join(DEFAULT_POOLING)}."
        )
