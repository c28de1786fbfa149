"""A batch of answers that are drawn together. Answers can join and leave between forward passes."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from extract.errors import InputError
from extract.policy import Decoding
from extract.sampling.local.cache import AnswerCache
from extract.sampling.local.draws import draw
from extract.sampling.local.reading import forward
from extract.sampling.local.replay import Replay
from extract.sampling.local.shared_cache import SharedCache
from extract.sampling.local.slot_cache import SlotCache, fits_slots

#: Rows without answers are removed once they make up this fraction of all rows. Each removal copies part of the cache.
_UNUSED_SHARE = 0.1


class Answers(NamedTuple):
    """Generation state of several answers.

    Attributes:
        ids: [answer] int64.
        starts: [answer] int64 lengths of the prompts in tokens.
        temperatures: [answer] float32.
        uniforms: [answer, step] float64 random numbers.
        tokens: [answer, step] int64 sampled tokens.
        logprobs: [answer, step] float32 log-probabilities of the tokens in nats.
        lengths: [answer] int64 number of sampled tokens.
    """

    ids: Tensor
    starts: Tensor
    temperatures: Tensor
    uniforms: Tensor
    tokens: Tensor
    logprobs: Tensor
    lengths: Tensor

    @classmethod
    def new(cls, ids: Tensor, starts: Tensor, temperatures: Tensor, uniforms: Tensor) -> Self:
        """Create answers that have no tokens yet."""
        tokens = torch.zeros_like(uniforms, dtype=torch.int64)
        logprobs = torch.zeros_like(uniforms, dtype=torch.float32)
        return cls(ids, starts, temperatures, uniforms, tokens, logprobs, torch.zeros_like(ids))

    def select(self, answers: Tensor) -> Self:
        """Select answers by index."""
        return type(self)(*(tensor[answers] for tensor in self))

    def joined(self, others: Self) -> Self:
        """Return these answers, followed by `others`."""
        return type(self)(*map(torch.cat, zip(self, others, strict=True)))


class AnswerBatch:
    """Draws several answers at the same time, one token per step.

    The model reads rows of tokens. In a `SharedCache`, answers to the same question share a row until they differ. In a
    `SlotCache`, each answer has its own row. This is faster on a GPU.

    `shared_attention` must be active for the model. If `temperature` is None, each answer has its own temperature.
    `end` contains the ids of the end-of-sequence tokens. `max_rows` is the maximum number of answers.
    `most_tokens` is the maximum total number of tokens of a prompt and its answer.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        decoding: Decoding,
        temperature: float | None,
        end: Tensor,
        max_rows: int,
        most_tokens: int,
    ) -> None:
        self._model, self._tokenizer, self._decoding, self._end = model, tokenizer, decoding, end
        self._temperature, self._max_rows, self._most_tokens = temperature, max_rows, most_tokens
        self._cache: AnswerCache | SharedCache | SlotCache | None = None
        self._replay: Replay
        self._answers: Answers
        self._rows: Tensor  # [answer] row of each answer
        self._members: Tensor  # [row] index of one of the answers in each row
        self._logits: Tensor  # [row, vocab]

    def __len__(self) -> int:
        return 0 if self._cache is None else len(self._answers.ids)

    @property
    def can_join(self) -> bool:
        """Whether further answers can join. Without a shared cache, they can join only an empty batch."""
        return self._cache is None or isinstance(self._cache, SharedCache | SlotCache)

    def join(self, answers: Answers, read: AnswerCache, logits: Tensor, questions: Tensor) -> None:
        """Add answers that have no tokens yet. `read` is the cache after a pass over the prompts.

        `questions` [answer] contains the index of each answer's prompt in `read` and in `logits` [question, vocab].
        """
        sizes = self._max_rows, self._most_tokens
        if self._cache is None and read.can_share and fits_slots(self._model, read, *sizes):
            self._cache = SlotCache(read, *sizes)
            self._replay = Replay(self._model, self._cache)
            self._answers, self._rows = answers.select(questions[:0]), questions[:0]
            self._logits = logits.new_zeros(self._max_rows, logits.shape[1])
        if isinstance(self._cache, SlotCache):
            rows = torch.tensor(self._cache.join(read, questions.tolist()), device=questions.device)
            self._answers, self._rows = self._answers.joined(answers), torch.cat([self._rows, rows])
            self._logits[rows] = logits[questions]
            return
        of_rows, rows = questions, torch.arange(len(questions), device=questions.device)
        if read.can_share:
            of_rows, rows = questions.unique(return_inverse=True)
            cache = SharedCache(read) if self._cache is None else self._cache
            assert isinstance(cache, SharedCache)
            cache.join(read, of_rows.tolist())
        else:
            cache = read.repeated(questions)
        if self._cache is None:
            self._answers, self._rows, self._logits = answers, rows, logits[of_rows]
        else:
            self._answers = self._answers.joined(answers)
            self._rows = torch.cat([self._rows, len(self._logits) + rows])
            self._logits = torch.cat([self._logits, logits[of_rows]])
        self._cache = cache

    def draw(self) -> Answers:
        """Draw the next token of each answer. Remove and return the answers that have ended."""
        answers, decoding, steps = self._answers, self._decoding, self._answers.lengths.clone()
        uniforms = answers.uniforms.gather(1, steps[:, None])[:, 0]
        temperature = answers.temperatures if self._temperature is None else self._temperature
        drawn = draw(self._logits, uniforms, temperature, decoding.top_p, decoding.top_k, self._rows)
        answers.tokens.scatter_(1, steps[:, None], drawn.tokens[:, None])
        answers.logprobs.scatter_(1, steps[:, None], drawn.logprobs[:, None])
        answers.lengths.add_(1)
        ended = torch.isin(drawn.tokens, self._end) | (answers.lengths == answers.tokens.shape[1])
        ended |= self._said_stop()
        # a single transfer from the device
        of_answers = torch.stack([self._rows, drawn.tokens, ended.long(), drawn.logprobs.isnan().long()])
        rows, tokens, has_ended, is_nan = of_answers.tolist()
        if any(is_nan):
            dtype = str(self._model.dtype).removeprefix("torch.")
            raise InputError(
                f"Expected finite logits, but the model returned NaN in {dtype}. Pass --dtype float32 or bfloat16."
            )
        gone, kept = ([i for i, each in enumerate(has_ended) if each == value] for value in (1, 0))
        removed = answers.select(torch.tensor(gone, dtype=torch.int64, device=ended.device))
        if gone:
            self._answers = answers.select(torch.tensor(kept, dtype=torch.int64, device=ended.device))
        if isinstance(self._cache, SlotCache):
            self._cache.free([rows[i] for i in gone])
            members = [0] * self._max_rows
            for i, answer in enumerate(kept):
                members[rows[answer]] = i
            self._set_rows([rows[answer] for answer in kept], members)
        else:
            self._branch([(rows[i], tokens[i]) for i in kept])
        return removed

    def _branch(self, keys: Sequence[tuple[int, int]]) -> None:
        """Give each distinct continuation its own row. `keys` contains the row and the next token of each answer."""
        if not keys:
            self._cache = None
            return
        assert self._cache is not None
        children = [dict[int, list[int]]() for _ in range(len(self._logits))]  # answers, by row and token
        for answer, (row, token) in enumerate(keys):
            children[row].setdefault(token, []).append(answer)
        counts, order = [len(of_row) for of_row in children], list(range(len(children)))
        if max(counts) > 1 or counts.count(0) >= _UNUSED_SHARE * len(counts):
            order = self._cache.branch(counts)
        rows, members = [0] * len(keys), [0] * len(order)
        for i, row in enumerate(order):
            if children[row]:
                _, answers = children[row].popitem()
                members[i] = answers[0]
                for answer in answers:
                    rows[answer] = i
        self._set_rows(rows, members)

    def _set_rows(self, rows: Sequence[int], members: Sequence[int]) -> None:
        """Set the row of each answer. `members` contains the index of one answer from each row."""
        device = self._answers.ids.device
        self._rows, self._members = (torch.tensor(each, dtype=torch.int64, device=device) for each in (rows, members))

    def read(self) -> None:
        """Run a forward pass over the last token of each row."""
        assert self._cache is not None
        mask, lengths = self._cache.before_pass(), self._answers.lengths[self._members]
        last = self._answers.tokens[self._members].gather(1, lengths[:, None] - 1)
        positions = (self._answers.starts[self._members] + lengths - 1)[:, None]
        if isinstance(self._cache, SlotCache):
            self._logits = self._replay(last, positions)
        else:
            self._logits = forward(self._model, last, mask, positions, self._cache)

    def _said_stop(self) -> Tensor:
        """Whether each answer contains a stop string, [answer] bool."""
        tokens, lengths = self._answers.tokens, self._answers.lengths
        if not self._decoding.stop:
            return torch.zeros_like(lengths, dtype=torch.bool)
        ids = [of_answer[:length] for of_answer, length in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        stopped = [any(stop in text for stop in self._decoding.stop) for text in texts]
        return torch.tensor(stopped, device=lengths.device)
