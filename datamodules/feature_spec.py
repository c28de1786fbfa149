"""From a datamodule's options to features: which signals they are of, where these stand in a store, and their values.

A signal of vectors (`hidden`) gives a feature for each layer and position. Token signals give one vector of numbers,
which is the only feature or stands behind every other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.names import chosen_keys, feature_names
from extract.errors import InputError, nearest
from extract.signals.features import DEFAULT_POOLING, Pooled, check_pooling, token_signals
from extract.signals.pooling import weight_of
from extract.store.ragged import Ragged
from extract.store.shards import Scope
from extract.store.store import Store


@dataclass(frozen=True)
class Wanted:
    """What the features are to be of.

    Attributes:
        scope: What a row is.
        signal: The signal that `positions` and `layers` choose from.
        positions: Its positions; None for all.
        layers: Its layers; None for all.
        tokens: Token signals, each a ``signal`` or a ``signal/position``.
        pooling: How the tokens of an answer become numbers; empty for questions.
        weights: Weights of the tokens, see `weight_of`; None for none.
    """

    scope: Scope
    signal: str
    positions: tuple[str, ...] | None
    layers: tuple[int, ...] | None
    tokens: tuple[str, ...]
    pooling: tuple[str, ...]
    weights: str | None

    @staticmethod
    def of(
        scope: Scope,
        signal: str,
        positions: Sequence[str] | None = None,
        layers: Sequence[int] | None = None,
        join: Sequence[str] | None = None,
        pooling: Sequence[str] | None = None,
        weights: str | None = None,
    ) -> Wanted:
        """What the options of a datamodule ask for, with what is taken where they say nothing.

        Raises:
            InputError: What can't be joined or pooled, or a pooling or weights with nothing to pool.
        """
        known = token_signals(scope)
        if signal in token_signals("sample") and signal not in known:
            raise InputError(
                f"Expected `signal` to have a number for each question, as {', '.join(known)} have, but {signal!r} is of answers only. Give --data.target=response."
            )
        for one in join or []:
            name, slash, position = one.partition("/")
            if name not in known or (slash and not position):
                what = "answers" if scope == "sample" else "questions"
                raise InputError(
                    f"Expected `join` to be among the token signals of {what}, {', '.join(known)}, each with /POSITION where one is wanted, but got {one!r}.{nearest(name, known)}"
                )
        alone = signal in known
        tokens = (*([signal] if alone else []), *(join or []))
        _check_needless(scope, signal, tokens, pooling=pooling, weights=weights)
        if pooling is not None:
            check_pooling(pooling)
        if weights is not None:
            weight_of(weights)
        default = None if alone else ("last_answer" if scope == "sample" else "last_prompt",)
        return Wanted(
            scope,
            signal,
            tuple(positions) if positions else default,
            None if layers is None else tuple(layers),
            tokens,
            tuple(pooling or DEFAULT_POOLING) if tokens and scope == "sample" else (),
            weights,
        )

    @property
    def alone(self) -> bool:
        """Whether the features are numbers of tokens and nothing else."""
        return self.signal in self.tokens[:1]

    @property
    def signals(self) -> list[str]:
        """Names of all signals that a store has to hold, each once."""
        weights = [] if self.weights is None else [weight_of(self.weights).signal]
        return list(dict.fromkeys([self.signal, *(one.split("/")[0] for one in self.tokens), *weights]))

    def found(self, store: Store) -> Found:
        """Where it all stands in a store.

        Raises:
            InputError: The store lacks a signal, a position or a layer, or the tensors don't fit together.
        """
        pooled = Pooled(self._token_keys(store), self.pooling, self._weight_key(store)) if self.tokens else None
        if self.alone:
            return Found(store, self.scope, self.signal, [], pooled)
        names = feature_names(store, self.signal, self.scope, self.positions, self.layers)
        return Found(store, self.scope, self.signal, names, pooled)

    def _token_keys(self, store: Store) -> tuple[str, ...]:
        keys: dict[str, None] = {}  # each once, in order
        for i, one in enumerate(self.tokens):
            name, _, position = one.partition("/")
            if self.alone and i == 0:
                found = chosen_keys(store, name, self.scope, self.positions, self.layers)
            else:
                found = chosen_keys(store, name, self.scope, [position] if position else None, None, "join")
            keys |= dict.fromkeys(f"{name}/{key}" for key in found)
        return tuple(keys)

    def _weight_key(self, store: Store) -> str | None:
        if self.weights is None:
            return None
        signal, position = weight_of(self.weights)
        held = chosen_keys(store, signal, self.scope, [position], None, "weights")
        if len(held) != 1:
            raise InputError(
                f"Expected `weights` {self.weights!r} to be one tensor of {str(store.path)!r}, but there are {len(held)}, {held[0]} to {held[-1]}. Choose others."
            )
        return f"{signal}/{held[0]}"


def _check_needless(scope: Scope, signal: str, tokens: Sequence[str], **given: object) -> None:
    """Refuse options about pooling where there is nothing to pool.

    Raises:
        InputError: One is given.
    """
    for name, value in given.items():
        if value is not None and (scope == "question" or not tokens):
            reason = (
                "a question has one number of each token signal"
                if tokens
                else f"{signal!r} has one vector for a row, and no token signal is joined to it"
            )
            raise InputError(
                f"Expected no `{name}`, because {reason}, but got {value!r}. Leave it out, or give a token signal in `signal` or `join` and the target response."
            )


@dataclass(frozen=True)
class Found:
    """Where features stand in a store.

    Attributes:
        store: The store.
        scope: What a row is.
        signal: The signal of the vectors, or the first of the token signals.
        keys: Keys ``layer/position`` of the vectors, which are a feature each; none where token signals are alone.
        pooled: Numbers of token signals behind every vector, or alone.
    """

    store: Store
    scope: Scope
    signal: str
    keys: list[str]
    pooled: Pooled | None

    @property
    def names(self) -> list[str]:
        """A feature's name: its key, or the signal where its numbers are one feature."""
        return self.keys or [self.signal]

    def read(self, n_rows: int) -> Tensor:
        """[row, feature, width] float32, one copy of what the store holds; NaN where something is missing."""
        numbers = torch.empty(n_rows, 0) if self.pooled is None else self.pooled.vector(self._of_tokens)
        if not self.keys:
            return numbers[:, None]
        width = self.store.signals.layout(self.signal, self.scope)[self.keys[0]].shape[0]
        features = torch.empty(n_rows, len(self.keys), width + numbers.shape[1])
        for place, key in enumerate(self.keys):
            features[:, place, :width] = self.store.signals.read(self.signal, key, self.scope)
        features[:, :, width:] = numbers[:, None]
        return features

    def _of_tokens(self, signal: str, key: str) -> Tensor | Ragged:
        read = self.store.signals.read_ragged if self.scope == "sample" else self.store.signals.read
        return read(signal, key, self.scope)
