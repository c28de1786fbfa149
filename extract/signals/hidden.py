"""The `hidden` and `hidden_tokens` signals: the residual stream at named positions, or at every token of an answer."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import Any, Self

import torch
from torch import Tensor

from extract.errors import InputError
from extract.signals.base import Pass
from extract.signals.model_parts import Hooks, decoder_blocks, decoder_of, n_layers
from extract.store.shards import Scope

#: Functions of the number P of prompt tokens and the number n of answer tokens. Each returns the token indices over
#: which states are averaged. Answer token y_t is at index P + t − 1.
POSITIONS: dict[Scope, dict[str, Callable[[int, int], range]]] = {
    "question": {"last_prompt": lambda n_prompt, n_answer: range(n_prompt - 1, n_prompt)},
    "sample": {
        "first_answer": lambda n_prompt, n_answer: range(n_prompt, n_prompt + 1),
        "last_answer": lambda n_prompt, n_answer: range(n_prompt + n_answer - 1, n_prompt + n_answer),
        "mean_answer": lambda n_prompt, n_answer: range(n_prompt, n_prompt + n_answer),
    },
}

ANSWER_TOKENS = "answer_tokens"


def position_ranges(scope: Scope, n_prompt: Sequence[int], n_answer: Sequence[int]) -> list[list[range]]:
    """Return the token ranges of the positions in `POSITIONS[scope]`, [position][row].

    Raises:
        InputError: If a range is outside the prompt at question scope, or outside the answer at sample scope.
    """
    positions: list[list[range]] = []
    for name, place in POSITIONS[scope].items():
        positions.append([])
        for prompt, answer in zip(n_prompt, n_answer, strict=True):
            indices, first = place(prompt, answer), 0 if scope == "question" else max(1, prompt)
            if not first <= indices.start < indices.stop <= prompt + answer:
                raise InputError(
                    f"Expected position {name!r} to be within the sequence of {prompt} prompt tokens and {answer} "
                    f"answer tokens, but got indices {indices.start} to {indices.stop - 1}. Leave out empty "
                    "prompts and answers."
                )
            positions[-1].append(indices)
    return positions


def hidden(batch: Pass) -> dict[str, Tensor]:
    """Return residual streams as a dict from ``layer/position`` to tensors [row, d_model] in the model's dtype."""
    positions = POSITIONS["question" if batch.tokens is None else "sample"]
    return {
        f"{layer}/{position}": states[:, i]
        for layer, states in batch.states.items()
        for i, position in enumerate(positions)
    }


def hidden_tokens(batch: Pass) -> dict[str, Tensor]:
    """Return the residual streams at all content tokens of the answers.

    The result is a dict from ``layer/answer_tokens`` to tensors [row, token, d_model], padded with NaN.
    """
    return {f"{layer}/{ANSWER_TOKENS}": batch.pad(states.float()) for layer, states in batch.token_states.items()}


def _mean_over(rows: Sequence[range], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Return a function that averages states [row, token, d_model] over each row's range in `rows`."""
    starts, stops = [row.start for row in rows], [row.stop for row in rows]
    start, stop = torch.tensor(starts, device=device), torch.tensor(stops, device=device)

    def mean(hidden: Tensor) -> Tensor:
        begin, end = start.to(hidden.device), stop.to(hidden.device)
        if all(len(row) == 1 for row in rows):
            return hidden[torch.arange(len(hidden), device=hidden.device), begin]
        token = torch.arange(min(starts), max(stops), device=hidden.device)
        inside = (token >= begin[:, None]) & (token < end[:, None])
        total = torch.where(inside[..., None], hidden[:, min(starts) : max(stops)].float(), 0.0).sum(1)
        return (total / (end - begin)[:, None]).to(hidden.dtype)

    return mean


class HiddenCapture(Hooks):
    """Context manager that captures hidden states in the current thread's forward passes.

    Layers are numbered as in transformers' `output_hidden_states`. Layer 0 contains the embeddings, and layer l is the
    residual stream after block l. For the last block, the states are taken after the final norm.

    Attributes:
        states: Hidden states of the most recent pass, by layer. The shape is [row, position, d_model] after `start`,
            and [total number of tokens, d_model] after `start_tokens`.
        select: Function that reduces the hidden states [row, token, d_model] of a pass, or None.

    Raises:
        InputError: If a layer does not exist in the model.
    """

    def __init__(self, model: Any, layers: Iterable[int]) -> None:
        super().__init__()
        self.layers = sorted(set(layers))
        last = n_layers(model)
        if outside := [layer for layer in self.layers if not 0 <= layer <= last]:
            raise InputError(
                f"Expected `layers` to be between 0 (embeddings) and {last}, but got {outside}. "
                f"This model has {last} blocks."
            )
        self.states: dict[int, Tensor] = {}
        self.select: Callable[[Tensor], Tensor] | None = None
        self._model = model

    def start(self, positions: Sequence[Sequence[range]]) -> None:
        """Set the token ranges [position][row] to average over.

        If `positions` is empty, later passes keep no states.
        """
        means = [_mean_over(rows, self._model.device) for rows in positions]
        self.select = (lambda hidden: torch.stack([mean(hidden) for mean in means], dim=1)) if means else None

    def start_tokens(self, rows: Sequence[range]) -> None:
        """Set the token range of each row. Later passes keep the states of these tokens, concatenated over rows."""
        places = [(i, slice(row.start, row.stop)) for i, row in enumerate(rows)]
        self.select = lambda hidden: torch.cat([hidden[place] for place in places])

    def finish(self) -> dict[int, Tensor]:
        """Return each layer's states from the most recent pass. Later passes are ignored until capture starts again."""
        states, self.states, self.select = self.states, {}, None
        return states

    def __enter__(self) -> Self:
        self._thread = get_ident()
        for layer in self.layers:
            keep, blocks = partial(self._keep, layer), decoder_blocks(self._model)
            if layer == 0:
                self.before(blocks[0], keep)
            else:
                self.after(decoder_of(self._model) if layer == len(blocks) else blocks[layer - 1], keep)
        return self

    def _keep(self, layer: int, hidden: Tensor) -> None:
        if self.select is not None and get_ident() == self._thread:
            self.states[layer] = self.select(hidden)
