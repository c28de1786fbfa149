"""Specify the features of a datamodule and read them from a store."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from datamodules.streamed_features import FeatureFiles, StreamedFeatures
from datamodules.token_states import TokenStates
from extract.errors import InputError, nearest
from extract.signals.features import DEFAULT_POOLING, PREFIXES, TokenFeatures, check_pooling, token_signals
from extract.signals.pooling import weight_of
from extract.signals.registry import SIGNALS
from extract.store.ragged import Ragged
from extract.store.shards import Scope
from extract.store.store import Store

TOKENS = "hidden_tokens"
#: Positions of the `hidden` signal in an answer and its prefixes. The first position is the default.
OF_ANSWERS = ("last_answer", "mean_answer", "first_answer")


@dataclass
class FeatureSpec:
    """Specification of the features: their signals, positions and layers.

    - A vector signal such as `hidden` yields one feature per layer and position.
    - The values of all token signals form one vector. It is appended to each feature of the vector signal. If there is
      no vector signal, this vector is the only feature.
    - `hidden_tokens` yields one feature per layer, with one vector per token.

    Args:
        scope: Whether a row is a question or an answer.
        signal, positions, layers, join, pooling, weights, prefixes, in_memory, num_workers: See `FeatureDataModule`.

    Attributes:
        n_tokens: Number of content tokens of each answer, [row] int64, set by `read` if `prefixes` is true.

    Raises:
        InputError: If the options are incompatible with the signals.
    """

    scope: Scope
    signal: str
    positions: Sequence[str] | None
    layers: Sequence[int] | None
    join: Sequence[str] | None
    pooling: Sequence[str] | None
    weights: str | None
    prefixes: bool = False
    in_memory: bool = True
    num_workers: int = 1
    n_tokens: Tensor = field(init=False)

    def __post_init__(self) -> None:
        available, signal = token_signals(self.scope), self.signal
        self._of_vectors = signal not in available
        if signal in SIGNALS and self.scope not in SIGNALS[signal].scopes:
            raise InputError(
                f"Expected `signal` to be available for questions, but {signal!r} is available only for answers. Pass "
                f"--data.target=response, or use a different signal, for example {', '.join(available)}."
            )
        self._of_tokens = self._of_vectors and signal in SIGNALS and SIGNALS[signal].per_token
        if self._of_tokens and self.join:
            raise InputError(
                f"Expected `join` to be omitted for the {signal!r} signal, but got {list(self.join)}. "
                "Nothing can be joined to this signal, because it has one vector per token. Omit `join`."
            )
        if self.prefixes and (self.scope == "question" or self.signal not in ("hidden", TOKENS) or self.join):
            raise InputError(
                "Expected `prefixes` to be false, but it is true. Prefixes require hidden states of answers and "
                "do not support `join`. Pass --data.target=response --data.signal=hidden_tokens without --data.join, "
                "or omit `prefixes`."
            )
        if not self.in_memory and (self.prefixes or self._of_tokens or not self._of_vectors):
            features = "prefixes" if self.prefixes else f"the {signal!r} signal"
            raise InputError(
                f"Expected `in_memory` to be true for {features}, but got false. Only signals with one vector per "
                "question or answer, such as `hidden`, can be read in chunks. Omit --data.in_memory."
            )
        tokens = [] if self._of_vectors else [(signal, self.positions or None, self.layers, "positions")]
        for joined in self.join or []:
            name, slash, position = joined.partition("/")
            if name not in available or (slash and not position):
                rows = "answers" if self.scope == "sample" else "questions"
                raise InputError(
                    f"Expected `join` to contain token signals of {rows} ({', '.join(available)}), optionally with "
                    f"/POSITION, but got {joined!r}.{nearest(name, available)}"
                )
            tokens.append((name, [position] if position else None, None, "join"))
        for option, value in (("pooling", self.pooling), ("weights", self.weights)):
            if value is not None and (self.scope == "question" or not tokens):
                raise InputError(
                    f"Expected `{option}` to be omitted, but got {value!r}. Only token signals of answers are pooled. "
                    f"Omit `{option}`, or pass --data.target=response and a token signal in `signal` or `join`."
                )
        if self.pooling is not None:
            check_pooling(self.pooling)
        self._weight = None if self.weights is None else weight_of(self.weights)
        self._tokens = tokens

    @property
    def signals(self) -> list[str]:
        """Names of all required signals."""
        weights = [] if self._weight is None else [self._weight[0]]
        return list(
            dict.fromkeys([TOKENS if self.prefixes else self.signal, *(name for name, *_ in self._tokens), *weights])
        )

    @property
    def fractions(self) -> list[float]:
        """Fractions of an answer that the features cover, in increasing order. The last one is 1."""
        return [*(PREFIXES.values() if self.prefixes else ()), 1.0]

    def _read_prefixes(self, store: Store) -> tuple[Tensor | TokenStates, list[str]]:
        """Read the features of answer prefixes. Return the features and their names, as in `read`."""
        known = ("answer_tokens",) if self._of_tokens else OF_ANSWERS
        positions = self.positions or known[:1]
        if unknown := [position for position in positions if position not in known]:
            raise InputError(
                f"With `prefixes`, expected `positions` to be one of {', '.join(known)}, but got {unknown[0]!r}."
                f"{nearest(unknown[0], known)}"
            )
        keys = choose_keys(store, TOKENS, self.scope, None, self.layers)
        whole = TokenStates.of([store.signals.read_ragged(TOKENS, key, self.scope) for key in keys])
        self.n_tokens = whole.n_tokens
        states, layers = whole.prefixes(self.fractions), [key.split("/")[0] for key in keys]
        names = [f"{layer}/{position}" for layer in layers for position in positions]
        if self._of_tokens:
            return states, names
        return torch.stack([states.at(position) for position in positions], 2).flatten(1, 2), names

    def read(
        self, store: Store, n_rows: int
    ) -> tuple[Tensor | TokenStates | StreamedFeatures, list[str], TokenFeatures | None]:
        """Read the features of a store with `n_rows` rows.

        With `prefixes`, all rows are repeated for each prefix length, in the order of `fractions`.

        Returns:
            - Features [row, feature, width] float32, with NaN for missing values. For `hidden_tokens`, the features are
              `TokenStates`. If `in_memory` is false, the features are `StreamedFeatures`.
            - Names of the features: ``layer/position`` for a vector signal, or the name of the token signal.
            - Specification of the token features; None if there are none.

        Raises:
            InputError: If the store lacks a signal, a position or a layer, or tensors have inconsistent shapes.
        """
        if self.prefixes:
            return (*self._read_prefixes(store), None)
        signals, scope = store.signals, self.scope

        def values(signal: str, key: str) -> Tensor | Ragged:
            return (signals.read_ragged if scope == "sample" else signals.read)(signal, key, scope)

        pooled = None
        if self._tokens:
            token_keys = dict.fromkeys(
                f"{name}/{key}"
                for name, of_signal, layers, option in self._tokens
                for key in choose_keys(store, name, scope, of_signal, layers, option)
            )
            weight_key = None
            if self._weight is not None:
                name, position = self._weight
                (key,) = choose_keys(store, name, scope, [position], None, "weights")  # a single layer
                weight_key = f"{name}/{key}"
            pooling = tuple(self.pooling or DEFAULT_POOLING) if scope == "sample" else ()
            pooled = TokenFeatures(tuple(token_keys), pooling, weight_key)
        if self._of_tokens:
            keys = choose_keys(store, self.signal, scope, self.positions, self.layers)
            return TokenStates.of([signals.read_ragged(self.signal, key, scope) for key in keys]), keys, None
        positions = self.positions or ["last_answer" if scope == "sample" else "last_prompt"]
        keys = choose_keys(store, self.signal, scope, positions, self.layers) if self._of_vectors else []
        numbers = torch.empty(n_rows, 0) if pooled is None else pooled.vector(values)
        if not keys:
            return numbers[:, None], [self.signal], pooled
        layout = signals.layout(self.signal, scope)
        shapes = {tuple(layout[key].shape) for key in keys}
        if len(shapes) > 1 or len(layout[keys[0]].shape) != 1 or not layout[keys[0]].shape[0]:
            raise InputError(
                f"Expected all vectors of the {self.signal!r} signal to have the same width, but got the shapes "
                f"{', '.join(str(list(shape)) for shape in sorted(shapes))}. Choose other layers with --data.layers."
            )
        width = layout[keys[0]].shape[0]
        if not self.in_memory:
            shards = signals.finished(self.signal, scope)
            starts = [0, *accumulate(map(store.questions.n_rows, shards))]
            files = FeatureFiles(signals, self.signal, keys, shards, starts, width, numbers)
            return StreamedFeatures(files, torch.arange(n_rows), self.num_workers), keys, pooled
        features = torch.empty(n_rows, len(keys), width + numbers.shape[1])
        for i, key in enumerate(keys):
            features[:, i, :width] = signals.read(self.signal, key, scope)
        features[:, :, width:] = numbers[:, None]
        return features, keys, pooled


def choose_keys(
    store: Store,
    signal: str,
    scope: Scope,
    positions: Sequence[str] | None,
    layers: Sequence[int] | None,
    option: str = "positions",
) -> list[str]:
    """Return the ``layer/position`` keys of a signal at the given positions and layers (None for all).

    `option` is named in the error message if a position is missing.

    Raises:
        InputError: If the store lacks the signal, a layer or a position.
    """
    parts = [key.split("/") for key in store.signals.keys(signal, scope)]
    names = None if layers is None else [str(layer) for layer in layers]
    for asked, wanted, place in ((option, positions, 1), ("layers", names, 0)):
        known = list(dict.fromkeys(part[place] for part in parts))
        for value in wanted or []:
            if value not in known:
                hint = (nearest(value, known) if asked == option else "") or " Choose one of them."
                raise InputError(
                    f"Expected `{asked}` to be one of {', '.join(known)} for the {signal!r} signal in "
                    f"{str(store.path)!r}, but got {value!r}.{hint}"
                )
        parts = [part for part in parts if wanted is None or part[place] in wanted]
    return ["/".join(part) for part in parts]
