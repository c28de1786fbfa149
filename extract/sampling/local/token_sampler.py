"""Draw all answers to each prompt, at every temperature, after prefilling the prompt once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.models.loading import check_prompts, end_tokens
from extract.policy import Decoding
from extract.sampling.local.answer_batch import AnswerBatch, Answers
from extract.sampling.local.attention import shared_attention
from extract.sampling.local.batching import Row, common_prefix, rows_of
from extract.sampling.local.cache import AnswerCache
from extract.sampling.local.draws import keyed_uniforms, question_key
from extract.sampling.local.products import fast_products
from extract.sampling.local.reading import PromptReader

#: Fraction of rows that must be free before answers join the batch, unless all waiting answers fit.
_JOINING_SHARE = 0.2
#: Minimum number of answers whose prompts are prefilled together, as a fraction of rows. Short passes are inefficient.
_READING_SHARE = 0.5


@dataclass(frozen=True)
class Sample:
    """One answer to one question.

    Attributes:
        sample: Index of the answer, from 0.
        token_ids: Generated tokens, including the end-of-sequence token if there is one.
        text: Decoded answer without special tokens, truncated before the first stop string.
        logprobs: Log-probability of each token in nats at temperature 1.
        finish_reason: "stop" (end-of-sequence token or stop string) or "length" (max_new_tokens reached).
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
    """Draws answers with a transformers model in evaluation mode, at most `max_rows` answers at a time."""

    def __init__(self, model: Any, tokenizer: Any, decoding: Decoding, max_rows: int = 320) -> None:
        self.model, self.tokenizer, self.decoding, self.max_rows = model, tokenizer, decoding, max_rows
        self._end = torch.tensor(end_tokens(model, tokenizer), device=model.device)
        self._reader = PromptReader(model, decoding.max_new_tokens)

    def sample(
        self,
        question_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        samples: range,
        progress: Callable[[int, int], None] = lambda answers, tokens: None,
    ) -> list[Sample]:
        """Draw answers at a single temperature, ordered by question, then by sample. See `sample_grid`."""
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
        """Draw answers to each question at every temperature, prefilling each prompt only once.

        Finished answers are replaced by answers to the next questions, shortest prompts first. If answers can't share
        the keys and values of their prompt, new answers start only when the whole batch has ended.

        Args:
            question_ids: Question ids. The random numbers depend on these ids, but not on the temperature.
            prompts: Prompt token ids of each question.
            samples: Indices of the answers to draw.
            temperatures: Distinct temperatures, which override those in `decoding`.
            progress: Called after each step with the numbers of newly finished answers and newly sampled tokens.
            block: Prompts of the whole block, if its answers are drawn in several calls. If the answers to all these
                prompts fit into one batch, the prompts are prefilled only in the first call.

        Returns:
            Dict from temperature to answers, ordered by question, then by sample.

        Raises:
            InputError: If the model can't process a prompt, or if a logit is NaN.
        """
        check_prompts(self.model, prompts, self.decoding.max_new_tokens)
        rows = rows_of(temperatures, samples)
        drawn: dict[tuple[int, Row], Sample] = {}
        with shared_attention(self.model), fast_products(self.model):
            for ended in self._draw(question_ids, prompts, rows, block, progress):
                of_rows = (ended.ids, ended.tokens, ended.logprobs, ended.lengths)
                for answer, *drawn_row in zip(*(tensor.tolist() for tensor in of_rows), strict=True):
                    i, row = answer // len(rows), rows[answer % len(rows)]
                    drawn[i, row] = self._answer(question_ids[i], row.sample, len(prompts[i]), *drawn_row)
        progress(len(prompts) * (len(temperatures) * len(samples) - len(rows)), 0)

        def sample_of(i: int, row: Row) -> Sample:
            return drawn.get((i, row)) or replace(drawn[i, row._replace(sample=samples[0])], sample=row.sample)

        return {t: [sample_of(i, Row(t, j)) for i in range(len(prompts)) for j in samples] for t in temperatures}

    def _draw(
        self,
        question_ids: Sequence[str],
        prompts: Sequence[Sequence[int]],
        rows: Sequence[Row],
        block: Sequence[Sequence[int]] | None,
        progress: Callable[[int, int], None],
    ) -> Iterator[Answers]:
        """Draw one answer to each question for each entry of `rows`.

        Each answer is yielded as soon as it is complete. The answer to question i for `rows[j]` has the id
        i · len(rows) + j.
        """
        temperature = rows[0].temperature if len({row.temperature for row in rows}) == 1 else None
        n_rows = min(self.max_rows, len(prompts) * len(rows))
        most_tokens = max(map(len, block or prompts), default=0) + self.decoding.max_new_tokens
        batch = AnswerBatch(self.model, self.tokenizer, self.decoding, temperature, self._end, n_rows, most_tokens)
        prefix = common_prefix(block or prompts)
        if block is None or len(block) * len(rows) > self.max_rows:
            self._reader.forget_block()
            block = None
        unread = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        waiting: list[tuple[int, int]] = []  # index in the last prefill, and index of the answer
        while unread or waiting or len(batch):
            if len(batch):
                batch.read()
            while (unread or waiting) and self._may_join(batch, len(waiting) or len(rows)):
                n_free = self.max_rows - len(batch)
                if not waiting:
                    n_read = max(1, n_free // len(rows), int(_READING_SHARE * self.max_rows) // len(rows))
                    chunk, unread = unread[:n_read], unread[n_read:]
                    cache, logits, places = self._read([prompts[i] for i in chunk], prefix, block)
                    waiting = [
                        (place, i * len(rows) + j)
                        for place, i in zip(places, chunk, strict=True)
                        for j in range(len(rows))
                    ]
                joining, waiting = waiting[:n_free], waiting[n_free:]
                questions, answers = torch.tensor(joining, device=logits.device).T
                batch.join(self._new_answers(answers, question_ids, prompts, rows), cache, logits, questions)
            n_answers = len(batch)
            ended = batch.draw()
            progress(len(ended.ids), n_answers)
            yield ended

    def _may_join(self, batch: AnswerBatch, n_waiting: int) -> bool:
        """Whether the batch is empty, or accepts further answers and has enough free rows."""
        n_free = self.max_rows - len(batch)
        return not len(batch) or (batch.can_join and n_free >= min(n_waiting, _JOINING_SHARE * self.max_rows))

    def _read(
        self, prompts: Sequence[Sequence[int]], prefix: Sequence[int], block: Sequence[Sequence[int]] | None
    ) -> tuple[AnswerCache, Tensor, Sequence[int]]:
        """Prefill prompts. Returns a cache, logits, and the index of each prompt in both."""
        if block is None:
            return *self._reader.read(prompts, prefix), range(len(prompts))
        index = {tuple(prompt): i for i, prompt in enumerate(block)}
        return *self._reader.read_block(block, prefix), [index[tuple(prompt)] for prompt in prompts]

    def _new_answers(
        self, answers: Tensor, question_ids: Sequence[str], prompts: Sequence[Sequence[int]], rows: Sequence[Row]
    ) -> Answers:
        pairs = [(i // len(rows), rows[i % len(rows)]) for i in answers.tolist()]
        keys = np.array([question_key(self.decoding.seed, question_ids[i]) for i, _ in pairs], dtype=np.uint64)
        samples = np.array([row.sample for _, row in pairs], dtype=np.uint64)
        uniforms = torch.from_numpy(keyed_uniforms(keys, samples, self.decoding.max_new_tokens))
        starts = torch.tensor([len(prompts[i]) for i, _ in pairs])
        temperatures = torch.tensor([row.temperature for _, row in pairs])
        device = answers.device
        return Answers.new(answers, starts.to(device), temperatures.to(device), uniforms.to(device))

    def _answer(
        self, question_id: str, sample: int, n_prompt: int, tokens: list[int], logprobs: list[float], length: int
    ) -> Sample:
        ids = tokens[:length]
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        cuts = [text.index(stop) for stop in self.decoding.stop if stop in text]
        reason: Literal["stop", "length"] = "stop" if cuts or ids[-1] in self._end else "length"
        text = text[: min(cuts)] if cuts else text
        return Sample(question_id, sample, ids, text, logprobs[:length], reason, n_prompt)
