"""What a probe reads of token signals: one vector a row, made in the same way from a store and from a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.pooling import PEAKS, POOLINGS, WEIGHTS, peak_features, pool_each, windows
from extract.signals.registry import SIGNALS, signals_of
from extract.store.ragged import Ragged
from extract.store.shards import Scope

#: What a number a token becomes where nothing else is said.
DEFAULT_POOLING = ("mean", "std", "max")
#: Pooling that only the entropies of the tokens have, see `peak_features`.
DISTRIBUTION = "distribution"
_WINDOWS = re.compile(r"windows_([1-9]|[1-5][0-9]|6[0-4])")
_KEY = re.compile(r"([a-z_]+)/((?:0|[1-9][0-9]{0,4})/([A-Za-z0-9_]+))")


@dataclass(frozen=True)
class Pooled:
    """Numbers of token signals that become one vector a row.

    Attributes:
        keys: Each a ``signal/layer/position``.
        pooling: How the tokens of an answer become numbers, each in its own way; empty for questions, which have one
            number each.
        weights: Key of the weights of the tokens; None for none.
    """

    keys: tuple[str, ...]
    pooling: tuple[str, ...] = ()
    weights: str | None = None

    def __post_init__(self) -> None:
        """Refuse what does not go together.

        Raises:
            InputError: A pooling that a key does not have, or weights where nothing is weighted.
        """
        other = next((key for key in self.keys if _position(key) != ("tokens", "entropy")), None)
        if DISTRIBUTION in self.pooling and other is not None:
            raise InputError(
                f"Expected `pooling` {DISTRIBUTION} with the entropy of the signal tokens alone, but {other!r} is there too. Give --data.signal=tokens --data.positions=[entropy], or --data.join=[tokens/entropy]."
            )
        even = next((how for how in self.pooling if _WINDOWS.fullmatch(how)), None)
        if even is not None and self.weights is not None:
            raise InputError(
                f"Expected `weights` with poolings that have a weighted form, but {even} has none. Leave `weights` out, or {even}."
            )

    @property
    def signals(self) -> list[str]:
        """The signals that are read, each once."""
        every = (*self.keys, *([] if self.weights is None else [self.weights]))
        return list(dict.fromkeys(key.split("/")[0] for key in every))

    @property
    def names(self) -> list[str]:
        """What each number of the vector is: a key, and how it was pooled."""
        if not self.pooling:
            return list(self.keys)
        return [f"{key} {how}" for key in self.keys for name in self.pooling for how in self._numbers(name)]

    def _numbers(self, how: str) -> list[str]:
        """Names of the numbers that a pooling makes of a key."""
        if how == DISTRIBUTION:
            return PEAKS[0] + (PEAKS[1] if self.weights is not None else [])
        even = _WINDOWS.fullmatch(how)
        return [how] if even is None else [f"{how}_{i}" for i in range(int(even[1]))]

    def vector(self, read: Callable[[str, str], Tensor | Ragged]) -> Tensor:
        """[row, number] float32; NaN where a row has no tokens, or what it needs is missing.

        Args:
            read: From a signal and one of its keys to its values: [row] of questions, ragged of answers.
        """
        weights = None if self.weights is None else self._tokens(read, self.weights)
        columns: list[Tensor] = []
        for key in self.keys:
            if not self.pooling:
                columns.append(_of_rows(read, key))
                continue
            values = self._tokens(read, key)
            plain = pool_each(values, [how for how in self.pooling if how in POOLINGS], weights)
            for how in self.pooling:
                if how == DISTRIBUTION:
                    columns += peak_features(values, weights=weights).values()
                elif how in POOLINGS:
                    columns.append(plain[how])
                else:
                    columns += windows(values, len(self._numbers(how))).unbind(1)
        return torch.stack(columns, 1)

    @staticmethod
    def _tokens(read: Callable[[str, str], Tensor | Ragged], key: str) -> Ragged:
        values = read(*key.split("/", 1))
        assert isinstance(values, Ragged)
        return values

    def to_json(self) -> dict[str, Any]:
        """As a saved probe states it."""
        return {"keys": list(self.keys), "pooling": list(self.pooling), "weights": self.weights}

    @staticmethod
    def from_json(stated: dict[str, Any]) -> Pooled:
        """The other way round, of what `is_key`, `is_pooling` and `is_weights` hold for."""
        return Pooled(tuple(stated["keys"]), tuple(stated["pooling"]), stated["weights"])


def _of_rows(read: Callable[[str, str], Tensor | Ragged], key: str) -> Tensor:
    values = read(*key.split("/", 1))
    assert isinstance(values, Tensor)
    return values.float()


def _position(key: str) -> tuple[str, str]:
    parts = key.split("/")
    return parts[0], parts[-1]


def token_signals(scope: Scope) -> list[str]:
    """Signals with a number a token, or one for the first token of a question's answer."""
    return signals_of(scope, per_token=True)


def is_key(value: Any, scope: Scope) -> bool:
    """Whether any JSON value is a ``signal/layer/position`` of a token signal."""
    found = _KEY.fullmatch(value) if isinstance(value, str) else None
    return found is not None and found[1] in token_signals(scope)


def is_weights(value: Any) -> bool:
    """Whether any JSON value is a key of weights."""
    if not is_key(value, "sample"):
        return False
    signal, position = _position(value)
    return SIGNALS[signal].weights or (signal, position) in WEIGHTS.values()


def is_pooling(value: Any) -> bool:
    """Whether any JSON value is the name of a pooling."""
    return isinstance(value, str) and (
        value in POOLINGS or value == DISTRIBUTION or _WINDOWS.fullmatch(value) is not None
    )


def check_pooling(pooling: Sequence[str]) -> None:
    """Refuse names that are no pooling.

    Raises:
        InputError: One is none, or stands there twice, or there is none.
    """
    known = [*POOLINGS, DISTRIBUTION, "windows_N"]
    if not pooling:
        raise InputError(
            f"Expected `pooling` to name at least one, but it is empty. Leave it out for {', '.join(DEFAULT_POOLING)}."
        )
    for how in pooling:
        if not is_pooling(how):
            raise InputError(
                f"Expected `pooling` to be among {', '.join(known)}, with N from 1 to 64, but got {how!r}.{nearest(how, known[:-1])}"
            )
    if len(set(pooling)) < len(pooling):
        raise InputError(f"Expected `pooling` to name each only once, but got {', '.join(pooling)}.")
