"""Scores of answers, one for every combination of token signal, pooling method and token weighting."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.table import AnswerTable
from extract.errors import InputError
from extract.signals.pooling import POOLINGS, WEIGHTS, pool_each
from extract.signals.registry import SIGNALS
from extract.store.ragged import Ragged
from extract.store.store import Store
from probes.metrics.functional.inputs import by_group

#: Value of `Score.weighting` for unweighted scores.
UNWEIGHTED = "none"
#: Signal that is pooled both with and without weights.
TOKENS = "tokens"
#: Signal name for the mean negative log-likelihood of other answers to the question.
PREDICTIVE = "mc_predictive_entropy"
#: Maximum number of columns that are pooled at once.
_COLUMNS = 64


class Score(NamedTuple):
    """Name of a score.

    Attributes:
        signal: Name of the signal.
        key: Layer and name of the signal's values, such as ``30/entropy``.
        pooling: Name of the method for pooling over the tokens of an answer.
        weighting: Token weights: `none`, `entropy`, `prob`, or ``SIGNAL/POSITION`` for weights from another signal.
    """

    signal: str
    key: str
    pooling: str
    weighting: str = UNWEIGHTED

    @property
    def position(self) -> str:
        """Part of `key` after the slash, such as ``entropy`` in ``30/entropy``."""
        return self.key.split("/")[1]

    @property
    def family(self) -> str:
        """Name of the signal, followed by the source of the weights if the score is weighted."""
        return self.signal if self.weighting == UNWEIGHTED else f"{self.signal} × {self.weighting.split('/')[0]}"

    @property
    def half(self) -> bool:
        """Whether the score is computed from even-numbered answers and evaluated on odd-numbered answers."""
        return self.signal == PREDICTIVE

    @property
    def sign(self) -> int:
        """Factor by which the score is multiplied, so that higher scores indicate right answers.

        The factor is 1 if `Signal.rising` contains `position` and `pooling` is not `std`. Otherwise, it is −1.
        """
        rising = self.signal in SIGNALS and self.position in SIGNALS[self.signal].rising
        return 1 if rising and self.pooling != "std" else -1

    def __str__(self) -> str:
        weighted = "" if self.weighting == UNWEIGHTED else f", weighted by {self.weighting}"
        return f"{self.signal} {self.key}, {self.pooling}{weighted}"


class Scores:
    """Compute all scores of a store's answers.

    Attributes:
        masked: Dict from each incomplete signal to a message about what is missing.
        names: Names of the scores.
        n_tokens: Number of content tokens of each answer, [answer] int64.

    Raises:
        InputError: If no token signal covers all answers, or if a file is damaged.
    """

    def __init__(self, store: Store, answers: AnswerTable) -> None:
        self._store, self._answers = store, answers
        self._keys: dict[str, list[str]] = {}
        self.masked: dict[str, str] = {}
        for signal in (name for name in SIGNALS if name in store.signals.names() and not SIGNALS[name].vectors):
            n_missing = len(store.signals.missing(signal, "sample"))
            if not n_missing:
                layout = store.signals.layout(signal, "sample")
                keys = [key for key, entry in layout.items() if entry.ragged and not entry.shape]
                self._keys[signal] = sorted(keys, key=_sort_key)
            elif n_missing < len(store.shards("sample")):
                ranges = f"{n_missing} of {len(store.shards('sample'))} sample ranges"
                self.masked[signal] = f"missing for {ranges}. Run `{_command(store, signal)}`."
        self._signals = [signal for signal, keys in self._keys.items() if keys and not SIGNALS[signal].weights]
        if not self._signals:
            raise InputError(
                f"Expected the store {str(store.path)!r} to contain a token signal for all answers, but it has none "
                f"(stored signals: {', '.join(store.signals.names()) or 'none'}). Run `{_command(store, TOKENS)}`."
            )
        #: Dict from the name of each weighting to the signal and key of its weights.
        self._weightings: dict[str, tuple[str, str]] = {}
        if TOKENS in self._signals:
            keys_of = {name: self.key_of(position) for name, (_, position) in WEIGHTS.items()}
            self._weightings = {name: (TOKENS, key) for name, key in keys_of.items() if key is not None}
            for signal in (signal for signal in self._keys if SIGNALS[signal].weights):
                self._weightings |= {f"{signal}/{key.split('/')[1]}": (signal, key) for key in self._keys[signal]}
        self.names = [name for names, _ in self._batches() for name in names]
        first = self._signals[0]
        self.n_tokens = store.signals.read_ragged(first, self._keys[first][0]).lengths

    def key_of(self, position: str) -> str | None:
        """Return the key of a statistic in the `tokens` signal, or None if the signal lacks it.

        `position` is the name of the statistic. In a model with 30 layers, for example, the key of ``entropy`` is
        ``30/entropy``.
        """
        return next((key for key in self._keys.get(TOKENS, []) if key.split("/")[1] == position), None)

    def batches(self) -> Iterator[Tensor]:
        """Yield scores [score, answer] float32 in batches, in the order of `names`; NaN if missing."""
        for names, compute in self._batches():
            yield torch.tensor([name.sign for name in names])[:, None] * compute()

    def _batches(self) -> Iterator[tuple[list[Score], Callable[[], Tensor]]]:
        """Yield the score names of each batch, and a function that computes the scores, [score, answer]."""
        batches = [(s, keys, [UNWEIGHTED]) for s in self._signals for keys in _chunks(self._keys[s], _COLUMNS)]
        if TOKENS in self._signals:
            keys = self._keys[TOKENS]
            step = max(1, _COLUMNS // len(keys))
            batches += [(TOKENS, keys, weightings) for weightings in _chunks(list(self._weightings), step)]
        for signal, keys, weightings in batches:
            names = [Score(signal, key, how, weighting) for how in POOLINGS for key in keys for weighting in weightings]
            yield names, partial(self._pool, signal, keys, weightings)
        if key := self.key_of("nll"):
            names = [Score(TOKENS, key, "sum"), Score(PREDICTIVE, key, "sum"), Score(PREDICTIVE, key, "mean")]
            yield names, partial(self._likelihoods, key)

    def _pool(self, signal: str, keys: list[str], weightings: list[str]) -> Tensor:
        """Compute scores [score, answer] for every combination of pooling method, key and weighting, in that order."""
        columns = self._read([(signal, key) for key in keys])
        weights = None
        if weightings != [UNWEIGHTED]:
            weights = self._read([self._weightings[name] for name in weightings])
            weights = Ragged(weights.values[:, None], weights.offsets)
        pooled = pool_each(Ragged(columns.values[:, :, None], columns.offsets), list(POOLINGS), weights)
        return torch.cat([values.flatten(1).T for values in pooled.values()])

    def _likelihoods(self, key: str) -> Tensor:
        """Return three scores [3, answer] from the log-probabilities of the tokens.

        Row 0 is the negative log-likelihood of the answer. Row 1 is the mean of row 0 over the even-numbered answers to
        the question. Row 2 is computed like row 1, but from the negative log-likelihood per token.
        """
        nll = self._store.signals.read_ragged(TOKENS, key)
        mean = pool_each(nll, ["mean"])["mean"]
        total = mean * nll.lengths
        return torch.stack([total, self._mean_of_half(total), self._mean_of_half(mean)])

    def _mean_of_half(self, values: Tensor) -> Tensor:
        """For each odd-numbered answer, return the mean of `values` over the even-numbered answers to its question.

        Even-numbered answers get NaN.
        """
        question, held_out = torch.from_numpy(self._answers.question), torch.from_numpy(self._answers.held_out)
        counted = ~held_out & values.isfinite()
        n_questions = int(question.max()) + 1
        total = by_group(values[counted].double(), question[counted], n_questions)
        mean = total / torch.bincount(question[counted], minlength=n_questions)
        return torch.where(held_out, mean[question].float(), torch.nan)

    def _read(self, keys: Sequence[tuple[str, str]]) -> Ragged:
        """Read token values [token, column], with one column per (signal, key) pair."""
        columns = [self._store.signals.read_ragged(signal, key) for signal, key in keys]
        return Ragged(torch.stack([column.values for column in columns], 1), columns[0].offsets)


def _command(store: Store, signal: str) -> str:
    return f"python -m extract read --store {store.path} --signals '[{signal}]' --scope sample"


def _sort_key(key: str) -> tuple[list[tuple[int, str]], int]:
    """Return a sort key that orders by position, then by layer, and compares numbers by value.

    >>> sorted(["3/jsd_10", "3/jsd_5", "12/jsd_5"], key=_sort_key)
    ['3/jsd_5', '12/jsd_5', '3/jsd_10']
    """
    layer, name = key.split("/")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split("_")], int(layer)


def _chunks(values: list[str], n: int) -> Iterator[list[str]]:
    return (values[start : start + n] for start in range(0, len(values), n))
