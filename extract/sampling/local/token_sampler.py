"""`TokenSampler`, which reads each prompt once and draws all answers to it, at every temperature."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import check_prompts, end_tokens
from extract.policy import Decoding
from extract.sampling.local.attention import shared_attention, using
from extract.sampling.local.batching import Row, batches, common_prefix, left_padded, rows_of
from extract.sampling.local.cache import AnswerCache, smallest_window
from extract.sampling.local.draws import draw, keyed_uniforms, question_key

#: Fraction of rows that must have finished before they are removed from the batch. Each removal copies the cache.
_COMPACT_SHARE = 0.2


@dataclass(frozen=True)
class Sample:
    """One answer to one question.

    Attributes:
        sample: Index of the answer, from 0.
        token_ids: Generated tokens, including the end token if there is one.
        text: Decoded answer without special tokens, cut before the first stop string.
        logprobs: Log-probability of each token in nats under the model's raw distribution (temperature 1).
        finish_reason: "stop" (end token or stop string) or "length" (max_new_tokens reached).
        prompt_tokens: Length of the prompt in tokens.
    """

    question_id: str
    sample: int
    token_ids: list[int]
    text: str
    logprobs: list[float]
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int


class TokenSampler:
    """Draws answers with a transformers model in this process.

    Args:
        model: Causal language model in evaluation mode.
        max_rows: Maximum number of answers drawn at the same time. It limits memory use.
    """

    def __init__(self, model: Any, tokenizer: Any, decoding: Decoding, max_rows: int = 320) -> None:
        self.model, self.tokenizer, self.decoding, self.max_rows = model, tokenizer, decoding, max_rows
        self._end = torch.tensor(end_tokens(model, tokenizer), device=model.device)
        self._prefix: tuple[tuple[int, ...], AnswerCache | None] = ((), None)
        # prompts that have been read, with their cache and logits
        self._kept: tuple[tuple[tuple[int, ...], ...], AnswerCache, Tensor] | None = None

    def sample(
        self,
        question_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        samples: range,
        progress: Callable[[int, int], None] = lambda answers, tokens: None,
    ) -> list[Sample]:
        """Draw answers at a single temperature, ordered by question and then sample. See `sample_grid`."""
        (temperature,) = self.decoding.temperatures
        return self.sample_grid(question_ids, prompts, samples, [temperature], progress)[temperature]

    @torch.inference_mode()
    def sample_grid(
        self,
        question_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        samples: range,
        temperatures: Sequence[float],
        progress: Callable[[int, int], None] = lambda answers, tokens: None,
        block: Sequence[Sequence[int]] | None = None,
    ) -> dict[float, list[Sample]]:
        """Draw answers to each question at every temperature, reading each prompt only once.

        Args:
            question_ids: Question ids. Random numbers depend on them, but not on the temperature.
            prompts: Prompt token ids of each question.
            samples: Indices of the answers to draw, for example ``range(0, 10)``.
            temperatures: Distinct temperatures, used instead of the policy's temperature.
            progress: Called after each step with the numbers of newly finished answers and newly drawn tokens.
            block: All prompts of a block, if several calls draw answers to different prompts of the same block. If the
                block fits into one batch, its prompts are read only in the first call. Otherwise, only their common
                prefix is kept between calls.

        Returns:
            Dict from temperature to answers, ordered by question and then sample.

        Raises:
            InputError: If the model can't read a prompt, or a logit is NaN.
        """
        check_prompts(self.model, prompts, self.decoding.max_new_tokens)
        prefix, rows = common_prefix(block or prompts), rows_of(temperatures, samples)
        if block is None or len(block) * len(rows) > self.max_rows:
            self._kept, block = None, None
        n_copies = len(temperatures) * len(samples) - len(rows)
        drawn: dict[tuple[str, Row], Sample] = {}
        for batch in batches([len(prompt) for prompt in prompts], len(rows), self.max_rows):
            ids = [question_ids[i] for i in batch]
            answers = self._sample_batch(ids, [prompts[i] for i in batch], prefix, block, rows, progress)
            drawn |= zip(((id_, row) for id_ in ids for row in rows), answers, strict=True)
            progress(n_copies * len(batch), 0)

        def answer(id_: str, row: Row) -> Sample:
            return drawn.get((id_, row)) or replace(drawn[id_, row._replace(sample=samples[0])], sample=row.sample)

        return {t: [answer(id_, Row(t, j)) for id_ in question_ids for j in samples] for t in temperatures}

    def _sample_batch(
        self,
        question_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        prefix: Sequence[int],
        block: Sequence[Sequence[int]] | None,
        rows: Sequence[Row],
        progress: Callable[[int, int], None],
    ) -> list[Sample]:
        """Draw the answers to a batch of questions, ordered by question and then row."""
        keys = np.array([question_key(self.decoding.seed, id_) for id_ in question_ids], dtype=np.uint64)
        with shared_attention(self.model):
            cache, logits = self._read(prompts, prefix) if block is None else self._read_once(prompts, block, prefix)
            starts, answers = torch.tensor([len(prompt) for prompt in prompts], device=logits.device), []
            for first in range(0, len(rows), self.max_rows):  # several passes only if the batch has one question
                now = rows[first : first + self.max_rows]
                n, indices = len(now), np.array([row.sample for row in now], dtype=np.uint64)
                uniforms = keyed_uniforms(np.repeat(keys, n), np.tile(indices, len(keys)), self.decoding.max_new_tokens)
                temperature: float | Tensor = now[0].temperature
                if any(row.temperature != temperature for row in now):
                    temperature = torch.tensor([row.temperature for row in now], device=logits.device).repeat(
                        len(prompts)
                    )
                # all passes except the last use a copy, because a pass removes prompts whose answers have ended
                answering = cache.copy() if first + self.max_rows < len(rows) else cache
                answering.start_answers(n)
                drawn = self._draw(
                    answering,
                    logits.repeat_interleave(n, 0),
                    starts.repeat_interleave(n),
                    torch.from_numpy(uniforms).to(logits.device),
                    temperature,
                    progress,
                )
                ids_and_rows = ((i, row) for i in range(len(prompts)) for row in now)
                for (i, row), *of_row in zip(ids_and_rows, *(tensor.tolist() for tensor in drawn), strict=True):
                    answers.append(self._answer(question_ids[i], row.sample, len(prompts[i]), *of_row))
        return answers

    def _read_once(
        self, prompts: Sequence[Sequence[int]], block: Sequence[Sequence[int]], prefix: Sequence[int]
    ) -> tuple[AnswerCache, Tensor]:
        """Return the cache and the logits of some prompts of a block. The whole block is read in the first call."""
        key = tuple(map(tuple, block))
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # free the memory first
            self._kept = (key, *self._read(block, prefix))
        _, cache, logits = self._kept
        index = {prompt: i for i, prompt in enumerate(key)}
        questions = torch.tensor([index[tuple(prompt)] for prompt in prompts], device=logits.device)
        return cache.take(questions), logits[questions]

    def _read(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int]) -> tuple[AnswerCache, Tensor]:
        """Read prompts, and return their cache and the logits [question, vocab] after the last token."""
        cache, ids, positions = self._prepare(prompts, prefix)
        return cache, self._forward(ids, cache.seen(0), positions, cache)

    def _prepare(self, prompts: Sequence[Sequence[int]], prefix: Sequence[int]) -> tuple[AnswerCache, Tensor, Tensor]:
        """Return a cache that contains the prefix, and the ids and positions [question, token] of the other tokens."""
        n_further = max(map(len, prompts)) - len(prefix) + self.decoding.max_new_tokens
        if len(prefix) + n_further > smallest_window(self.model):
            prefix = ()  # a sliding window would count the padding between prefix and prompt
        read = self._read_prefix(prefix) if prefix else None
        if read is None:
            prefix = ()
        ids, mask = left_padded([prompt[len(prefix) :] for prompt in prompts], pad=0, device=self.model.device)
        mask = torch.nn.functional.pad(mask, (len(prefix), 0), value=1)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, len(prefix) :]
        return AnswerCache(self.model, mask, read), ids, positions

    def _read_prefix(self, prefix: Sequence[int]) -> AnswerCache | None:
        """Return a one-row cache of the prefix, or None if the model can't use one.

        The cache is kept until the prefix changes.
        """
        if self._prefix[0] != tuple(prefix):
            ids = torch.tensor([prefix], device=self.model.device)
            cache, positions = AnswerCache(self.model, torch.ones_like(ids)), torch.arange(len(prefix))[None]
            with shared_attention(self.model):
                self._forward(ids, cache.seen(0), positions.to(ids.device), cache)
            self._prefix = tuple(prefix), cache if cache.may_be_prefix else None
        return self._prefix[1]

    def _draw(
        self,
        cache: AnswerCache,
        logits: Tensor,
        starts: Tensor,
        uniforms: Tensor,
        temperature: float | Tensor,
        progress: Callable[[int, int], None],
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw until all answers have ended. Returns tokens and log-probabilities [row, step], and lengths [row]."""
        decoding, device, (n_rows, n_steps) = self.decoding, logits.device, uniforms.shape
        tokens = torch.zeros(n_rows, n_steps, dtype=torch.int64, device=device)
        logprobs = torch.zeros(n_rows, n_steps, device=device)
        lengths = torch.full((n_rows,), n_steps, device=device)
        rows = torch.arange(n_rows, device=device)  # original index of each row still in the batch
        running = torch.ones_like(rows, dtype=torch.bool)
        for t in range(n_steps):
            of_rows = temperature[rows] if isinstance(temperature, Tensor) else temperature
            drawn = draw(logits, uniforms[rows, t], of_rows, decoding.top_p, decoding.top_k)
            now = rows[running]
            tokens[now, t], logprobs[now, t] = drawn.tokens[running], drawn.logprobs[running]
            ended = running & (torch.isin(drawn.tokens, self._end) | self._said_stop(tokens[rows, : t + 1], running))
            lengths[rows[ended]] = t + 1
            running &= ~ended
            n_running, n_nan = torch.stack([running.sum(), drawn.logprobs.isnan().sum()]).tolist()  # one sync per step
            if n_nan:
                dtype = str(self.model.dtype).removeprefix("torch.")
                raise InputError(
                    f"Expected finite logits, but the model returned NaN in {dtype}. Pass --dtype float32 or bfloat16."
                )
            last = n_running == 0 or t + 1 == n_steps
            progress(len(now) if last else len(now) - n_running, len(now))
            if last:
                break
            next_tokens = drawn.tokens
            if n_running <= (1 - _COMPACT_SHARE) * len(rows):
                kept = running.nonzero()[:, 0]
                cache.keep(kept)
                rows, next_tokens, running = rows[kept], next_tokens[kept], running[kept]
            logits = self._forward(next_tokens[:, None], cache.seen(t + 1), (starts[rows] + t)[:, None], cache)
        return tokens, logprobs, lengths

    def _forward(self, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: Any) -> Tensor:
        """Run the model and return the logits [row, vocab] after the last token."""
        with using(cache):
            output = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
        return output.logits[:, -1]

    def _said_stop(self, tokens: Tensor, running: Tensor) -> Tensor:
        said = torch.zeros_like(running)
        if self.decoding.stop:
            texts = self.tokenizer.batch_decode(tokens[running], skip_special_tokens=True)
            stopped = [any(stop in text for stop in self.decoding.stop) for text in texts]
            said[running] = torch.tensor(stopped, device=said.device)
        return said

    def _answer(
        self, question_id: str, sample: int, n_prompt: int, tokens: list[int], logprobs: list[float], length: int
    ) -> Sample:
        ids = tokens[:length]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        cuts = [text.index(stop) for stop in self.decoding.stop if stop in text]
        reason: Literal["stop", "length"] = "stop" if cuts or ids[-1] in self._end else "length"
        text = text[: min(cuts)] if cuts else text
        return Sample(question_id, sample, ids, text, logprobs[:length], reason, n_prompt)
