"""The `likelihood` baseline: log-probabilities of each question's options or reference answer."""

import math
from collections.abc import Sequence
from typing import Any

from extract.asking.base import AskedTable, Done
from extract.errors import InputError
from extract.likelihood.options import continuations_of, probability
from extract.likelihood.scoring import BATCH_TOKENS, Item, encode_item, score
from extract.models.loading import check_prompts
from extract.models.store_model import prompt_of
from extract.running.memory import retry_with_smaller_batch
from extract.store.shards import Scope, Shard

#: Maximum number of continuations per sequence when they are scored without a prompt.
_AT_ONCE = 32


class Likelihood(AskedTable):
    """Scores the options of each question as continuations of its prompt.

    A question without options has a single continuation, its reference answer. Each continuation is scored twice: after
    the policy's prompt and without a prompt. The `value` column contains the probability of the most likely
    continuation, divided by the total probability of all continuations.
    """

    _batch_tokens = BATCH_TOKENS

    def settings(self, scope: Scope) -> dict[str, Any]:
        """See `AskedBaseline.settings`."""
        return {"model": self.model, "continuations": self.context.continuations}

    def prepare(self) -> None:
        """Load the store's model."""
        self._model, self._tokenizer = self.context.load()

    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return one row per question. `mass` is the total probability of the question's continuations."""
        questions, prompt = self.store.questions.block(shard), prompt_of(self.store)
        options = [continuations_of(question, self.context.continuations) for question in questions]
        for question, (texts, _) in zip(questions, options, strict=True):
            if not all(text.strip() for text in texts):
                raise InputError(
                    f"Expected every continuation to contain text, but question {question.id!r} has an empty "
                    "continuation. Remove it from `choices`, or pass --continuations letters."
                )
        pairs = [
            encode_item(prompt, self._tokenizer, question.prompt, texts)
            for question, (texts, _) in zip(questions, options, strict=True)
        ]
        for question, (item, _) in zip(questions, pairs, strict=True):
            wholes = [[*item.prompt, *continuation] for continuation in item.continuations]
            check_prompts(self._model, wholes, name=f"question {question.id!r} with continuation")
        logprobs = self._score([item for item, _ in pairs], progress)
        unconditional = self._score_alone([alone for _, alone in pairs])
        return [
            {
                "question_id": question.id,
                "value": probability(of_question),
                "text": texts[max(range(len(texts)), key=of_question.__getitem__)],
                "mass": math.fsum(map(math.exp, of_question)),
                "prompt_tokens": len(item.prompt) + sum(map(len, item.continuations)),
                "completion_tokens": 0,
                "attempts": 1,
                "continuations": texts,
                "logprobs": of_question,
                "unconditional": of_alone,
                "n_tokens": [*map(len, item.continuations)],
                "n_bytes": [len(text.encode()) for text in texts],
                "target": target,
            }
            for question, (texts, target), (item, _), of_question, of_alone in zip(
                questions, options, pairs, logprobs, unconditional, strict=True
            )
        ]

    def _score(self, items: Sequence[Item], progress: Done = lambda items, tokens: None) -> list[list[float]]:
        scores, self._batch_tokens = retry_with_smaller_batch(
            lambda size, counted: score(self._model, items, size, counted), self._batch_tokens, "tokens", progress
        )
        return scores

    def _score_alone(self, items: Sequence[Item]) -> list[list[float]]:
        """Score each distinct continuation without a prompt."""
        distinct = list(dict.fromkeys(tuple(one) for item in items for one in item.continuations))
        parts = [Item(items[0].prompt, distinct[i : i + _AT_ONCE]) for i in range(0, len(distinct), _AT_ONCE)]
        values = [value for of_part in self._score(parts) for value in of_part]
        found = dict(zip(distinct, values, strict=True))
        return [[found[tuple(one)] for one in item.continuations] for item in items]
