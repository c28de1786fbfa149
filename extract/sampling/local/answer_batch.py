"""A batch of answers that are drawn together. Answers can join and leave between forward passes."""

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from extract.errors import InputError
from extract.policy import Decoding
from extract.sampling.local.cache import AnswerCache
from extract.sampling.local.draws import draw
from extract.sampling.local.reading import forward
from extract.sampling.local.shared_cache import SharedCache

#: Fraction of rows that must have ended before the ended rows are removed. Each removal copies a part of the cache.
_ENDED_SHARE = 0.2


class Rows(NamedTuple):
    """State of several answers, one per row.

    Attributes:
        ids: [row] int64 ids of the answers.
        starts: [row] int64 lengths of the prompts in tokens.
        temperatures: [row] float32.
        uniforms: [row, step] float64 random numbers.
        tokens: [row, step] int64 drawn tokens.
        logprobs: [row, step] float32 log-probabilities of the tokens in nats.
        lengths: [row] int64 number of drawn tokens.
        running: [row] bool, false if the answer has ended.
    """

    ids: Tensor
    starts: Tensor
    temperatures: Tensor
    uniforms: Tensor
    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor
    running: Tensor

    @classmethod
    def new(cls, ids: Tensor, starts: Tensor, temperatures: Tensor, uniforms: Tensor) -> Self:
        """Create rows without tokens."""
        tokens = torch.zeros_like(uniforms, dtype=torch.int64)
        logprobs, lengths = torch.zeros_like(uniforms, dtype=torch.float32), torch.zeros_like(ids)
        return cls(
            ids, starts, temperatures, uniforms, tokens, logprobs, lengths, torch.ones_like(ids, dtype=torch.bool)
        )

    def select(self, rows: Tensor) -> Self:
        """Select rows by index or by a boolean mask."""
        return type(self)(*(tensor[rows] for tensor in self))

    def joined(self, others: Self) -> Self:
        """Return these rows, followed by the rows of `others`."""
        return type(self)(*map(torch.cat, zip(self, others, strict=True)))


class AnswerBatch:
    """Draws several answers at the same time, one token per step. Each row is an answer.

    `shared_attention` must be active for the model. If `temperature` is None, each row has its own temperature. `end`
    contains the ids of the end tokens.
    """

    def __init__(self, model: Any, tokenizer: Any, decoding: Decoding, temperature: float | None, end: Tensor) -> None:
        self._model, self._tokenizer, self._decoding, self._end = model, tokenizer, decoding, end
        self._temperature = temperature
        self._cache: AnswerCache | SharedCache | None = None
        self._rows: Rows
        self._logits: Tensor
        self._n_running: int

    def __len__(self) -> int:
        return 0 if self._cache is None else len(self._rows.ids)

    @property
    def can_join(self) -> bool:
        """Whether further rows can join. Without a shared cache, they can join only an empty batch."""
        return self._cache is None or isinstance(self._cache, SharedCache)

    def join(self, rows: Rows, read: AnswerCache, logits: Tensor, questions: Tensor) -> None:
        """Append rows that have no tokens yet. `read` is the cache after a pass over the prompts.

        `questions` [row] contains the index of each row's prompt in `read` and in `logits` [question, vocab].
        """
        if isinstance(self._cache, SharedCache):
            rows, logits = self._rows.joined(rows), torch.cat([self._logits, logits[questions]])
        else:
            logits = logits[questions]
            self._cache = SharedCache(read) if read.can_share else read.repeated(questions)
        if isinstance(self._cache, SharedCache):
            self._cache.join(read, questions)
        self._rows, self._logits = rows, logits

    def draw(self) -> tuple[int, int]:
        """Draw the next token of each answer. Return the numbers of drawn tokens and of newly ended answers."""
        rows, decoding, n_steps = self._rows, self._decoding, self._rows.tokens.shape[1]
        temperature = rows.temperatures if self._temperature is None else self._temperature
        steps = rows.lengths.clamp_max(n_steps - 1)
        uniforms = rows.uniforms.gather(1, steps[:, None])[:, 0]
        drawn = draw(self._logits, uniforms, temperature, decoding.top_p, decoding.top_k)
        now = rows.running.nonzero()[:, 0]
        rows.tokens[now, steps[now]], rows.logprobs[now, steps[now]] = drawn.tokens[now], drawn.logprobs[now]
        rows.lengths[now] += 1
        ended = torch.isin(drawn.tokens, self._end) | (rows.lengths == n_steps)
        rows.running[ended] = False
        rows.running[now[self._said_stop(rows.select(now))]] = False
        n_running, n_nan = torch.stack([rows.running.sum(), drawn.logprobs.isnan().sum()]).tolist()
        if n_nan:
            dtype = str(self._model.dtype).removeprefix("torch.")
            raise InputError(
                f"Expected finite logits, but the model returned NaN in {dtype}. Pass --dtype float32 or bfloat16."
            )
        self._n_running = n_running
        return len(now), len(now) - n_running

    def remove_ended(self) -> Rows | None:
        """Remove the answers that have ended, and return them. If only a few have ended, keep all and return None."""
        if self._n_running > (1 - _ENDED_SHARE) * len(self):
            return None
        removed, kept = self._rows.select(~self._rows.running), self._rows.running.nonzero()[:, 0]
        self._rows = self._rows.select(kept)
        if not len(kept):
            self._cache = None
        elif self._cache is not None:
            self._cache.keep(kept)
        return removed

    def read(self) -> None:
        """Run a forward pass over the last token of each row."""
        assert self._cache is not None
        rows, mask = self._rows, self._cache.before_pass()
        last = rows.tokens.gather(1, rows.lengths[:, None] - 1)
        positions = (rows.starts + rows.lengths - 1)[:, None]
        self._logits = forward(self._model, last, mask, positions, self._cache)

    def _said_stop(self, rows: Rows) -> Tensor:
        """Whether each answer contains a stop string, [row] bool."""
        if not self._decoding.stop:
            return torch.zeros_like(rows.running)
        ids = [tokens[:length] for tokens, length in zip(rows.tokens.tolist(), rows.lengths.tolist(), strict=True)]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        stopped = [any(stop in text for stop in self._decoding.stop) for text in texts]
        return torch.tensor(stopped, device=rows.running.device)
