"""The `p_true` baseline (can the model answer a question?) and the `p_true_answer` baseline (is an answer right?).

Each value is the probability that the model replies Yes rather than No (Kadavath et al. 2022,
https://arxiv.org/abs/2207.05221).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from extract.asking.base import AskedTable, Done, asking_prompt
from extract.errors import InputError
from extract.models.loading import check_prompts
from extract.prompts import PromptTemplate
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Count
from extract.sampling.local.attention import shared_attention
from extract.sampling.local.batching import common_prefix
from extract.sampling.local.reading import PromptReader
from extract.signals.reader import by_length
from extract.store.shards import Scope, Shard

#: Minimum total probability of all forms of Yes and No. Below this minimum, the ratio of Yes to No is meaningless.
LEAST_MASS = 1e-3
_BATCH_TOKENS = 2048


def surface_forms(tokenizer: Any, n_vocab: int) -> tuple[list[int], list[int]]:
    """Return the ids of all tokens that spell Yes, such as `` Yes`` and ``YES``, and of all tokens that spell No."""
    texts = tokenizer.batch_decode([[i] for i in range(min(n_vocab, len(tokenizer)))])
    yes, no = ([i for i, text in enumerate(texts) if text.strip().casefold() == word] for word in ("yes", "no"))
    if not (yes and no):
        raise InputError(
            "Expected a tokenizer with single tokens for Yes and No, but this tokenizer does not have both. "
            "Remove `p_true` and `p_true_answer` from `baselines`."
        )
    return yes, no


def yes_against_no(logits: Tensor, forms: tuple[list[int], list[int]]) -> tuple[Tensor, Tensor]:
    """Compute the ratio P(yes) / (P(yes) + P(no)) and the mass P(yes) + P(no), both float32 [...].

    P(yes) and P(no) are the total probabilities of all `forms` of Yes and of No. The logits are [..., vocab].
    """
    logprobs = logits.float().log_softmax(-1)
    yes, no = (logprobs[..., tokens].logsumexp(-1) for tokens in forms)
    return (yes - no).sigmoid(), torch.logaddexp(yes, no).exp()


class YesNoReader:
    """Reads the probabilities of Yes and No after each prompt, at temperature 1."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self._prompt_reader = model, PromptReader(model, max_new_tokens=1)
        self._forms = surface_forms(tokenizer, model.get_output_embeddings().weight.shape[0])
        self._batch_tokens = _BATCH_TOKENS

    def read(self, prompts: Sequence[Sequence[int]], progress: Done) -> list[tuple[float | None, float]]:
        """Return the ratio and the mass from `yes_against_no` for each prompt.

        The ratio is None if the mass is below `LEAST_MASS`.
        """
        check_prompts(self.model, prompts, 1)
        prefix = common_prefix(prompts)

        @torch.inference_mode()
        def read_with(batch_tokens: int, counted: Count) -> Tensor:
            result = torch.empty(len(prompts), 2)
            for batch in by_length([len(prompt) - len(prefix) for prompt in prompts], batch_tokens):
                with shared_attention(self.model):
                    _, logits = self._prompt_reader.read([prompts[i] for i in batch], prefix)
                result[batch] = torch.stack(yes_against_no(logits, self._forms), -1).cpu()
                counted(len(batch), sum(len(prompts[i]) for i in batch))
            return result

        values, self._batch_tokens = retry_with_smaller_batch(read_with, self._batch_tokens, "prompt tokens", progress)
        if values.isnan().any():
            raise InputError(
                f"Expected finite logits, but the model returns NaN in {str(self.model.dtype).removeprefix('torch.')}. "
                "Make a new store with --dtype float32 or bfloat16."
            )
        return [(value if mass >= LEAST_MASS else None, mass) for value, mass in values.tolist()]


class PTrue(AskedTable):
    """Asks the store's model whether it can answer a question."""

    template: ClassVar[str] = (
        "Are you able to answer the following question correctly? Reply with one word, Yes or No.\n\n"
        "Question: {question}"
    )

    @cached_property
    def prompt(self) -> PromptTemplate:
        """Prompt template of the baseline."""
        return asking_prompt({**self.store.identity["policy"], "model": self.model}, self.template)

    def settings(self, scope: Scope) -> dict[str, Any]:
        """See `AskedBaseline.settings`."""
        return {"model": self.model, "prompt": self.prompt.record(), "least_mass": LEAST_MASS}

    def prepare(self) -> None:
        """Load the store's model and find its tokens for Yes and No."""
        self._reader = YesNoReader(*self.context.load())

    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return one row per question. Each row records a cost of 1 completion token."""
        tokenizer, questions = self.context.load()[1], self.questions(shard)
        prompts = [self.prompt.encode(tokenizer, text) for text in questions.values()]
        values = self._reader.read(prompts, progress)
        cost = {"completion_tokens": 1, "attempts": 1}
        return [
            {"question_id": id_, "value": value, "text": "", "mass": mass, "prompt_tokens": len(prompt), **cost}
            for id_, prompt, (value, mass) in zip(questions, prompts, values, strict=True)
        ]


class PTrueAnswer(PTrue):
    """Asks the store's model whether each answer is right. Identical answers to a question are read only once."""

    template = "Is the proposed answer to the question correct? Reply with one word, Yes or No.\n\nQuestion: {question}"

    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return one row per answer."""
        tokenizer, questions, answers = self.context.load()[1], self.questions(shard), self.answers(shard)
        texts = [f"{questions[row['question_id']]}\nProposed answer: {row['text'].strip()}" for row in answers]
        prompts = {text: self.prompt.encode(tokenizer, text) for text in texts}
        values = dict(zip(prompts, self._reader.read(list(prompts.values()), progress), strict=True))
        progress(len(answers) - len(values), 0)
        cost = {text: {"prompt_tokens": len(prompt), "completion_tokens": 1} for text, prompt in prompts.items()}
        return [
            {"question_id": row["question_id"], "sample": row["sample"], "value": values[text][0], **cost[text]}
            for row, text in zip(answers, texts, strict=True)
        ]
