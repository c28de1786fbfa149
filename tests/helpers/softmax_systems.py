"""Systems of known temperature: each token is drawn from a softmax over logits that depend on the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from applications.background.systems import Systems
from applications.background.variability import Counted
from extract.policy import Decoding, Identity, ModelIdentity, Policy
from extract.prompts import PromptTemplate
from extract.questions.question import Question, questions_hash
from extract.sampling.temperature_grid import member_name
from extract.store.shards import SampleRange
from extract.store.store import Store

GRID = (np.arange(21) / 20).tolist()
MODEL = ModelIdentity("made", None, "a" * 64, "float32", "b" * 64, "c" * 64)


class SoftmaxSystem:
    """A model whose logits [prompt, token, vocab] do not depend on the tokens before.

    Args:
        seed: Seed of the logits and of the draws.
        n_prompts, n_tokens, n_vocab: Sizes.
        scale: Standard deviation of the logits.
    """

    def __init__(
        self, seed: int = 0, n_prompts: int = 30, n_tokens: int = 8, n_vocab: int = 20, scale: float = 3
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self.prompts = [f"Say {i}." for i in range(n_prompts)]
        self.logits = scale * self._rng.normal(size=(n_prompts, n_tokens, n_vocab))

    def draw(self, temperature: float, n: int) -> NDArray[np.int64]:
        """Draw outputs [prompt, output, token]."""
        shape = (len(self.logits), n, *self.logits.shape[1:])
        noise = self._rng.gumbel(size=shape) * temperature
        return np.asarray((self.logits[:, None] + noise).argmax(-1))

    def systems(self, temperature: float, n: int, n_reference: int, grid: Sequence[float] = GRID) -> Systems:
        """Return a tested system at a temperature, with the same model as the only reference."""
        reference = {t: [Counted.of(one) for one in self.draw(t, n_reference).tolist()] for t in grid}
        tested = [Counted.of(one) for one in self.draw(temperature, n).tolist()]
        return Systems(self.prompts, tested, {"same": reference}, "tokens", self.logits.shape[1], 0)

    def make_store(self, folder: Path, temperature: float, n: int = 8, **options: Any) -> Store:
        """Make a store of drawn outputs. See `make_output_store` for the options."""
        outputs = dict(zip(self.prompts, self.draw(temperature, n).tolist(), strict=True))
        return make_output_store(folder, outputs, temperature, **options)

    def make_grid(self, folder: Path, grid: Sequence[float], n: int = 8, **options: object) -> Path:
        """Make a temperature grid of drawn outputs."""
        for t in grid:
            self.make_store(folder / member_name(t), t, n, **options)
        return folder


def make_output_store(
    folder: Path,
    outputs: Mapping[str, Sequence[Sequence[int]]],
    temperature: float,
    seed: int = 0,
    model: ModelIdentity = MODEL,
    limit: int = 8,
    top_p: float = 1.0,
    template: str = "{question}",
) -> Store:
    """Make a store with the given outputs, as token ids by prompt. Outputs below the limit get an end token.

    Args:
        folder: Folder of the store.
        outputs: Token ids by prompt, equally many outputs for each.
        temperature, seed, limit, top_p, template: Decoding options.
        model: Identity of the model.
    """
    questions = [Question(id=f"q{i}", dataset="made", text=one, references=("",)) for i, one in enumerate(outputs)]
    decoding = Decoding(temperature, top_p=top_p, max_new_tokens=limit, seed=seed, prompt=PromptTemplate(template))
    store = Store.create(folder, Identity(Policy(model, decoding), questions_hash(questions), 32), questions)
    k = len(next(iter(outputs.values())))
    for block in range(store.questions.n_blocks):
        rows = [
            _sample(one.id, j, [*outputs[one.text][j]], limit)
            for one in questions[block * 32 : (block + 1) * 32]
            for j in range(k)
        ]
        store.samples.write(SampleRange(block, 0, k), rows)
    return store


def _sample(question: str, sample: int, content: list[int], limit: int) -> dict[str, object]:
    whole = len(content) < limit
    ids = content + [999] * whole
    key = {"question_id": question, "sample": sample, "text": " ".join(f"w{token}" for token in content)}
    told = {"logprobs": [-0.1] * len(ids), "finish_reason": "stop" if whole else "length", "prompt_tokens": 9}
    return {**key, "token_ids": ids, **told}
