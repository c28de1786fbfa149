"""The scores of a grid: every token signal of a store, pooled in every way, with and without weights. Nothing is fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from datamodules.table import AnswerTable
from extract.errors import InputError
from extract.signals.pooling import POOLINGS, WEIGHTS, pool_each
from extract.signals.registry import SIGNALS
from extract.store.ragged import Ragged
from extract.store.store import Store

#: What a score without weights is weighted by.
PLAIN = "none"
#: The signal whose keys are also pooled with weights, and from which likelihoods are taken.
TOKENS = "tokens"
#: Mean negative log-likelihood of a question's other answers: what these scores are called.
PREDICTIVE = "mc_predictive_entropy"
#: Columns that are pooled at once.
_COLUMNS = 64


class Score(NamedTuple):
    """One number for an answer.

    Attributes:
        signal: Name of the signal.
        key: Layer and name, ``30/entropy``.
        pooling: How its tokens become one number.
        weighting: What the tokens are weighted by: `none`, `entropy`, `prob`, or ``signal/name`` of a signal of weights.
    """

    signal: str
    key: str
    pooling: str
    weighting: str = PLAIN

    @property
    def position(self) -> str:
        """Its key without the layer."""
        return self.key.split("/")[1]

    @property
    def family(self) -> str:
        """What it is chosen among: its signal, and the signal of its weights."""
        return self.signal if self.weighting == PLAIN else f"{self.signal} × {self.weighting.split('/')[0]}"

    @property
    def half(self) -> bool:
        """Whether it is made from the answers with even j, and scored on those with odd j."""
        return self.signal == PREDICTIVE

    @property
    def sign(self) -> int:
        """1 where a higher number speaks for a right answer, −1 where it speaks for a wrong one; never fitted.

        All signals speak for a wrong answer, but those named in `Signal.rising`. A standard deviation doesn't change when
        its signal is turned round, so that it speaks for a wrong one there too.
        """
        rising = self.signal in SIGNALS and self.position in SIGNALS[self.signal].rising
        return 1 if rising and self.pooling != "std" else -1

    def __str__(self) -> str:
        weighted = "" if self.weighting == PLAIN else f", weighted by {self.weighting}"
        return f"{self.signal} {self.key}, {self.pooling}{weighted}"


class Scores:
    """All scores that a store's answers have, in the order of its samples.

    Args:
        store: The store.
        answers: Its answers.

    Raises:
        InputError: The store has read no token signal of all its answers, or a file is damaged.
    """

    def __init__(self, store: Store, answers: AnswerTable) -> None:
        self._store, self._answers = store, answers
        self._keys: dict[str, list[str]] = {}
        #: Signals that are left out, and why.
        self.masked: dict[str, str] = {}
        there = set(store.signals.names())
        for signal in (name for name, one in SIGNALS.items() if name in there and one.per_token):
            missing = len(store.signals.missing(signal, "sample"))
            if not missing:
                layout = store.signals.layout(signal, "sample")
                held = [key for key, entry in layout.items() if entry.ragged and not entry.shape]
                self._keys[signal] = sorted(held, key=_in_order)
            elif missing < len(store.shards("sample")):
                self.masked[signal] = f"{missing} parts of the answers lack it: run `{_read(store, signal)}`"
        plain = [signal for signal, keys in self._keys.items() if keys and not SIGNALS[signal].weights]
        if not plain:
            raise InputError(
                f"Expected the store {str(store.path)!r} to hold token signals of all its answers, but it has none (signals begun: {', '.join(store.signals.names()) or 'none'}). Run `{_read(store, TOKENS)}`."
            )
        #: Signals that are scores.
        self.signals = plain
        #: Signal and key of all weights that the store holds, by the name of the weighting.
        self.weightings = self._weightings()
        self.names = [score for group in self._groups() for score in group]
        #: [answer] content tokens of each answer.
        self.n_tokens = self._read(plain[0], self._keys[plain[0]][:1]).lengths

    def _weightings(self) -> dict[str, tuple[str, str]]:
        """Signal and key by weighting."""
        if TOKENS not in self.signals:
            return {}
        of_name = {key.split("/")[1]: key for key in self._keys[TOKENS]}
        own = {
            name: (TOKENS, of_name[weight.position]) for name, weight in WEIGHTS.items() if weight.position in of_name
        }
        weights = [signal for signal in self._keys if SIGNALS[signal].weights]
        return own | {
            f"{signal}/{key.split('/')[1]}": (signal, key) for signal in weights for key in self._keys[signal]
        }

    def _groups(self) -> Iterator[list[Score]]:
        """The scores that are made together, in the order of `batches`."""
        for signal in self.signals:
            for keys in _some(self._keys[signal], _COLUMNS):
                yield [Score(signal, key, how) for how in POOLINGS for key in keys]
        if TOKENS in self.signals:
            for names in _some(list(self.weightings), max(1, _COLUMNS // len(self._keys[TOKENS]))):
                yield [
                    Score(TOKENS, key, how, name) for how in POOLINGS for key in self._keys[TOKENS] for name in names
                ]
            if key := self.key_of("nll"):
                yield [Score(TOKENS, key, "sum"), Score(PREDICTIVE, key, "sum"), Score(PREDICTIVE, key, "mean")]

    def key_of(self, name: str) -> str | None:
        """The key of `tokens` with a name, for example ``30/entropy``."""
        return next((key for key in self._keys.get(TOKENS, []) if key.split("/")[1] == name), None)

    def batches(self) -> Iterator[Tensor]:
        """[score, answer] float32 for some of `names` after the other, higher = more likely right; NaN where there is none."""
        for group in self._groups():
            sign = torch.tensor([score.sign for score in group])
            yield sign[:, None] * self._pooled(group)

    def _pooled(self, group: Sequence[Score]) -> Tensor:
        """[score, answer] before it is turned round."""
        signal, keys = group[0].signal, list(dict.fromkeys(score.key for score in group))
        values = self._read(signal, keys)
        if group[-1].half:
            return self._likelihoods(values)
        if group[0].weighting == PLAIN:
            pooled = pool_each(values, list(POOLINGS))
            return torch.cat([one.T for one in pooled.values()])
        names = list(dict.fromkeys(score.weighting for score in group))
        weights = [self._store.signals.read_ragged(*self.weightings[name]) for name in names]
        stacked = Ragged(torch.stack([one.values for one in weights], 1)[:, None], weights[0].offsets)
        pooled = pool_each(Ragged(values.values[:, :, None], values.offsets), list(POOLINGS), stacked)
        return torch.cat([one.flatten(1).T for one in pooled.values()])

    def _likelihoods(self, nll: Ragged) -> Tensor:
        """−log P(answer), and −1/M Σ log P over the M answers with even j to its question, as it is and by token; [3, answer]."""
        mean = pool_each(Ragged(nll.values[:, 0], nll.offsets), ["mean"])["mean"]
        total = mean * nll.lengths
        return torch.stack([total, *(self._of_other_half(one) for one in (total, mean))])

    def _of_other_half(self, values: Tensor) -> Tensor:
        """Mean over the question's answers with even j, for those with odd j; NaN for the former."""
        question, held = torch.from_numpy(self._answers.question), torch.from_numpy(self._answers.held_out)
        counted = ~held & values.isfinite()
        n_questions = int(question.max()) + 1
        total = torch.zeros(n_questions, dtype=torch.float64).index_add_(0, question[counted], values[counted].double())
        mean = total / torch.bincount(question[counted], minlength=n_questions)  # NaN where there is no such answer
        return torch.where(held, mean[question].float(), torch.nan)

    def _read(self, signal: str, keys: Sequence[str]) -> Ragged:
        """[sum of lengths, key] of some keys of a signal."""
        read = [self._store.signals.read_ragged(signal, key) for key in keys]
        return Ragged(torch.stack([one.values for one in read], 1), read[0].offsets)


def _read(store: Store, signal: str) -> str:
    return f"python -m extract read --store {store.path} --signals [{signal}] --scope sample"


def _in_order(key: str) -> tuple[list[tuple[int, str]], int]:
    """Keys by name and layer, numbers in a name by their size.

    >>> sorted(["3/jsd_10", "3/jsd_5", "12/jsd_5"], key=_in_order)
    ['3/jsd_5', '12/jsd_5', '3/jsd_10']
    """
    layer, name = key.split("/")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in name.split("_")], int(layer)


def _some(values: Sequence[str], n: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(values), n):
        yield values[start : start + n]
