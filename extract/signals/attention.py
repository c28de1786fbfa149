"""What attention does at the places of an answer, read from the queries and keys while the pass itself is left as it is.

transformers calls an attention function by name. Ours calls the one that the model had, so that not a bit of the pass
changes, and then forms the weights of the answer's own queries, a few heads and queries at a time, and keeps sums.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.attention_entropy import HeadEntropies, head_entropies, over_heads
from extract.signals.capture import decoder_blocks
from extract.signals.macs import FLOORS, log_floor
from extract.signals.mixing import Dots, MixingCapture
from extract.signals.rollout import column_field, element_field, normalisers
from extract.signals.rows import Rows
from extract.signals.scores import Places, query_index, score_chunks

#: What can be wanted of attention.
WANTS = ("attention_entropy", "attention_blocks", "attention_macs", "mixing")

#: What is left unread when attention can't be.
_SIGNALS = "attention_entropy, rollout, rollout_max and macs"

_active: ContextVar[AttentionReader | None] = ContextVar("attention_reader", default=None)


@dataclass(frozen=True)
class Attention:
    """Attention at the places of each answer, as far as it was wanted; all float32, and 0 behind a row's places.

    Queries and keys of blocks are the n + 1 places from the one that drew y_1 to y_n's own.

    Attributes:
        places: Where queries and keys stand.
        entropies: [layer, row, token] in [0, 1] by name, where each token was drawn; see `over_heads`.
        blocks: [row, query, key] by layer, attention's mean over heads.
        normalisers: [row, normaliser, query] by layer, sums of whole rows under receptive fields; see `rollout`.
        floors: [row, query, key] by floor in hundredths, sums over layers of `log_floor`; key ≤ query.
        dots: [row, query] each, by layer; see `mixing`.
    """

    places: Places
    entropies: dict[str, Tensor]
    blocks: list[Tensor]
    normalisers: list[Tensor]
    floors: dict[int, Tensor]
    dots: list[Dots]


class AttentionReader(AbstractContextManager["AttentionReader"]):
    """Reads attention in the passes of a model: `look_at` before a pass, `take` after it.

    Other passes are left alone. On exit the model attends as before.

    Args:
        model: Causal language model with SDPA or eager attention.
        want: Among `WANTS`; nothing else is computed. All but attention_entropy need answers that are read in the pass.

    Raises:
        InputError: On entering or at `take`, a model whose attention does not come through transformers' registry, once
            a layer, or with whose blocks there is no mixing.
    """

    def __init__(self, model: Any, want: Collection[str]) -> None:
        unknown = sorted(set(want) - set(WANTS))
        if unknown:
            raise InputError(f"Expected `want` to be among {', '.join(WANTS)}, but got {unknown[0]!r}.")
        self._model, self._want = model, frozenset(want)
        self._exit = ExitStack()
        self._mixing = MixingCapture(model) if "mixing" in want else None
        self._layers: dict[int, int] = {}
        self._rows: Rows | None = None
        self._forget()

    def __enter__(self) -> Self:
        blocks = decoder_blocks(self._model)
        self._layers = {id(module): layer for layer, block in enumerate(blocks) for module in block.modules()}
        with ExitStack() as stack:
            if self._want - {"mixing"}:
                stack.callback(self._model.set_attn_implementation, self._let_attend())
                stack.callback(_active.reset, _active.set(self))
            if self._mixing is not None:
                stack.enter_context(self._mixing)
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.close()
        self._rows = None
        self._forget()

    def look_at(self, rows: Rows) -> None:
        """Say where the answers stand in the next pass.

        Raises:
            InputError: Answers that the pass won't read, where more than attention_entropy is wanted.
        """
        if self._wide and not rows.read:
            raise InputError(
                f"Expected answers to read, but got questions, which have no {_SIGNALS.partition(', ')[2]}. Leave these out."
            )
        self._rows = rows
        self._forget()
        if self._mixing is not None:
            self._mixing.index = query_index(rows, last=True)

    def take(self) -> Attention:
        """What the last pass showed; nothing is kept of the next one until `look_at`.

        Raises:
            InputError: A layer whose attention did not come through the registry once.
        """
        if self._want - {"mixing"} and self._calls != Counter(set(self._layers.values())):
            raise self._refusal(f"{len(self._calls)} of them did so, {self._calls.total()} times in all")
        dots = [] if self._mixing is None else self._mixing.take()
        ...

    @property
    def _wide(self) -> bool:
        return bool(self._want - {"attention_entropy"})
