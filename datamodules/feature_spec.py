"""From a datamodule's options to features: the signals they come from, their keys in a store, and their values.

A signal of vectors (`hidden`) gives one feature for each layer and position. Token signals give one vector of numbers,
which is the only feature, or is appended to every other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.features import DEFAULT_POOLING, TokenFeatures, check_pooling, token_signals
from extract.signals.pooling import weight_of
from extract.store.ragged import Ragged
from extract.store.shards import Scope
from extract.store.store import Store


@dataclass(frozen=True)
class FeatureSpec:
    """The signals, positions and layers that features are made of.

    Attributes:
        scope: Whether a row is a question or an answer.
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
    ) -> FeatureSpec:
        """The specification for the options of a `FeatureDataModule`, with defaults filled in.

        Raises:
            InputError: If a signal cannot be joined or pooled, or pooling or weights are given without tokens to pool.
        """
        available = token_signals(scope)
        if signal in token_signals("sample") and signal not in available:
            raise InputError(
                f"Expected `signal` to have a number for each question, as {', '.join(available)} have, but {signal!r} "
                "is of answers only. Give --data.target=response."
            )
        for joined in join or []:
            name, slash, position = joined.partition("/")
            if name not in available or (slash and not position):
                rows = "answers" if scope == "sample" else "questions"
                raise InputError(
                    f"Expected `join` to be among the token signals of {rows}, {', '.join(available)}, optionally with "
                    f"/POSITION, but got {joined!r}.{nearest(name, available)}"
                )
        alone = signal in available
        tokens = (*([signal] if alone else []), *(join or []))
        for option, value in (("pooling", pooling), ("weights", weights)):
            if value is not None and (scope == "question" or not tokens):
                reason = (
                    "a question has one number of each token signal"
                    if tokens
                    else f"{signal!r} has one vector for a row, and no token signal is joined to it"
                )
                raise InputError(
                    f"Expected no `{option}`, because {reason}, but got {value!r}. Leave it out, or give a token "
                    "signal in `signal` or `join` and the target response."
                )
        if pooling is not None:
            check_pooling(pooling)
        if weights is not None:
            weight_of(weights)
        default = None if alone else ("last_answer" if scope == "sample" else "last_prompt",)
        return FeatureSpec(
            scope,
            signal,
            tuple(positions) if positions else default,
            None if layers is None else tuple(layers),
            tokens,
            tuple(pooling or DEFAULT_POOLING) if tokens and scope == "sample" else (),
            weights,
        )

    @property
    def signals(self) -> list[str]:
        """Names of all signals that a store must hold, each once."""
        weights = [] if self.weights is None else [weight_of(self.weights).signal]
        return list(dict.fromkeys([self.signal, *(name.split("/")[0] for name in self.tokens), *weights]))

    def resolve(self, store: Store) -> ResolvedFeatures:
        """Find the features in a store.

        Raises:
            InputError: If the store lacks a signal, a position or a layer, or its tensors do not fit together.
        """
        pooled = TokenFeatures(self._token_keys(store), self.pooling, self._weight_key(store)) if self.tokens else None
        alone = self.signal in self.tokens[:1]
        keys = [] if alone else vector_keys(store, self.signal, self.scope, self.positions, self.layers)
        return ResolvedFeatures(store, self.scope, self.signal, keys, pooled)

    def _token_keys(self, store: Store) -> tuple[str, ...]:
        keys: dict[str, None] = {}  # an ordered set
        for i, token_signal in enumerate(self.tokens):
            name, _, position = token_signal.partition("/")
            if i == 0 and name == self.signal:
                found = choose_keys(store, name, self.scope, self.positions, self.layers)
            else:
                found = choose_keys(store, name, self.scope, [position] if position else None, None, "join")
            keys |= dict.fromkeys(f"{name}/{key}" for key in found)
        return tuple(keys)

    def _weight_key(self, store: Store) -> str | None:
        if self.weights is None:
            return None
        signal, position = weight_of(self.weights)
        keys = choose_keys(store, signal, self.scope, [position], None, "weights")
        if len(keys) != 1:
            raise InputError(
                f"Expected `weights` {self.weights!r} to be one tensor of {str(store.path)!r}, but there are "
                f"{len(keys)}, {keys[0]} to {keys[-1]}. Choose others."
            )
        return f"{signal}/{keys[0]}"


@dataclass(frozen=True)
class ResolvedFeatures:
    """Features as found in a store.

    Attributes:
        store: The store.
        scope: Whether a row is a question or an answer.
        signal: The signal of the vectors, or the first of the token signals.
        keys: Keys ``layer/position`` of the vectors, one feature each; empty if there are token signals only.
        pooled: Numbers of token signals, alone or appended to every vector.
    """

    store: Store
    scope: Scope
    signal: str
    keys: list[str]
    pooled: TokenFeatures | None

    @property
    def names(self) -> list[str]:
        """Names of the features: their keys, or the signal if its numbers are one feature."""
        return self.keys or [self.signal]

    def read(self, n_rows: int) -> Tensor:
        """[row, feature, width] float32 in one copy; NaN where a value is missing."""
        signals = self.store.signals

        def values(signal: str, key: str) -> Tensor | Ragged:
            return (signals.read_ragged if self.scope == "sample" else signals.read)(signal, key, self.scope)

        numbers = torch.empty(n_rows, 0) if self.pooled is None else self.pooled.vector(values)
        if not self.keys:
            return numbers[:, None]
        width = signals.layout(self.signal, self.scope)[self.keys[0]].shape[0]
        features = torch.empty(n_rows, len(self.keys), width + numbers.shape[1])
        for i, key in enumerate(self.keys):
            features[:, i, :width] = signals.read(self.signal, key, self.scope)
        features[:, :, width:] = numbers[:, None]
        return features


def vector_keys(
    store: Store, signal: str, scope: Scope, positions: Sequence[str] | None, layers: Sequence[int] | None
) -> list[str]:
    """As `choose_keys`, for a signal whose tensors are vectors of one width.

    Raises:
        InputError: As `choose_keys`, or if the tensors are not vectors of one width.
    """
    keys, layout = choose_keys(store, signal, scope, positions, layers), store.signals.layout(signal, scope)
    first = list(layout[keys[0]].shape)
    for key in keys:
        shape = list(layout[key].shape)
        if len(shape) != 1 or shape != first:
            raise InputError(
                f"Expected the signal {signal!r} of {str(store.path)!r} to be one vector a row, of the width of "
                f"{keys[0]!r}, which has the shape {first}, but {key!r} has {shape}. Choose other `layers` or "
                "`positions`."
            )
    return keys


def choose_keys(
    store: Store,
    signal: str,
    scope: Scope,
    positions: Sequence[str] | None,
    layers: Sequence[int] | None,
    option: str = "positions",
) -> list[str]:
    """Keys ``layer/position`` of a signal at the given positions and layers.

    Args:
        store: The store.
        signal: Name of the signal.
        scope: Whether its rows are questions or answers.
        positions: Positions; None for all.
        layers: Layers; None for all.
        option: Name of the option that gave the positions, for the message.

    Raises:
        InputError: If the store lacks the signal, a position or a layer.
    """
    keys, path = store.signals.keys(signal, scope), str(store.path)
    parts = [(key, int(key.split("/")[0]), key.split("/")[1]) for key in keys]
    known_positions, known_layers = sorted({position for *_, position in parts}), [layer for _, layer, _ in parts]
    for position in positions or []:
        if position not in known_positions:
            raise InputError(
                f"Expected `{option}` to be among {', '.join(known_positions)}, which {path!r} holds of {signal!r}, "
                f"but got {position!r}.{nearest(position, known_positions) or ' Choose one of them.'}"
            )
    for layer in layers or []:
        if layer not in known_layers:
            raise InputError(
                f"Expected `layers` to be among those {path!r} holds ({min(known_layers)} to {max(known_layers)}), "
                f"but got {layer}. Choose one of them."
            )
    chosen = [
        key
        for key, layer, position in parts
        if (positions is None or position in positions) and (layers is None or layer in layers)
    ]
    if not chosen:
        raise InputError(
            f"Expected `layers` to be among those that {path!r} holds of {', '.join(positions or known_positions)}, "
            f"but got {layers}. Leave it out, or give null, for all."
        )
    return chosen
