"""Compare one run at 5 temperatures with 5 separate runs, for few-shot prompts of at least 300 tokens.

The examples are either the same for all prompts or different for each question. Model loading is not timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.result import alternating, report
from extract.models.loading import load_model
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.questions import load_questions
from extract.sampling.local.token_sampler import Sample, TokenSampler

BAR = 0.75
K = 4
GRID = "0.2:1:0.2"


@dataclass
class Counted:
    """Counts of the prompt and answer tokens that the model processed."""

    prompt: int = 0
    answer: int = 0


class Sides:
    """Two ways to draw answers to `prompts` (token ids) at all temperatures of `policy`: in one run or in several."""

    def __init__(self, model: Any, tokenizer: Any, prompts: list[list[int]], policy: Decoding) -> None:
        self.model, self.tokenizer, self.prompts, self.policy = model, tokenizer, prompts, policy
        self.ids = [str(i) for i in range(len(prompts))]

    def together(self) -> dict[float, list[Sample]]:
        """Sample all temperatures in one run."""
        sampler = TokenSampler(self.model, self.tokenizer, self.policy)
        return sampler.sample_grid(self.ids, self.prompts, range(K), self.policy.temperatures)

    def apart(self) -> dict[float, list[Sample]]:
        """Sample each temperature in a separate run."""
        drawn = {}
        for temperature in self.policy.temperatures:
            sampler = TokenSampler(self.model, self.tokenizer, self.policy.at(temperature))
            drawn[temperature] = sampler.sample(self.ids, self.prompts, range(K))
        return drawn

    @contextmanager
    def counting(self) -> Iterator[Counted]:
        """Count the non-padding tokens that the model processes inside the `with` block."""
        counted, forward = Counted(), self.model.forward

        def count(*args: Any, **kwargs: Any) -> Any:
            n_rows, n_tokens = kwargs["input_ids"].shape
            if n_tokens == 1:
                counted.answer += n_rows
            else:
                counted.prompt += int(kwargs["attention_mask"][:, -n_tokens:].sum())
            return forward(*args, **kwargs)

        self.model.forward = count
        try:
            yield counted
        finally:
            self.model.forward = forward

    def operations(self, counted: Counted, n_reads: int) -> float:
        """Return the number of multiply-adds in products with weight matrices.

        `n_reads` is the total number of prompt prefills. The layers are counted for every token, and the head only at
        positions where an answer token is drawn.
        """
        inner = sum(one.numel() for one in self.model.model.layers.parameters() if one.dim() == 2)
        head = self.model.lm_head.weight.numel()
        return float(inner * (counted.prompt + counted.answer) + head * (counted.answer + n_reads))


def few_shot_prompts(tokenizer: Any, n: int, n_examples: int, own: bool) -> list[list[int]]:
    """Return `n` prompts with worked examples. If `own` is true, each prompt has different examples."""
    questions = load_questions("facts")
    asked, rest = questions[:n], questions[n:]
    prompts = []
    for i, question in enumerate(asked):
        start = (i * n_examples if own else 0) % (len(rest) - n_examples)
        shown = "".join(
            f"Question: {one.text}\nAnswer: {one.references[0]}\n" for one in rest[start : start + n_examples]
        )
        template = PromptTemplate(f"{shown}Question: {{question}}\nAnswer:", chat=False)
        prompts.append(template.encode(tokenizer, question.text))
    return prompts


def measure(sides: Sides, pairs: int) -> dict[str, Any]:
    """Return the ratios (one run / separate runs) of time, operations and prompt tokens, and the measured values."""
    with sides.counting() as ours:
        together = sides.together()
    with sides.counting() as theirs:
        apart = sides.apart()
    same = sum(
        a.token_ids == b.token_ids
        for temperature in together
        for a, b in zip(together[temperature], apart[temperature], strict=True)
    )
    n, n_temperatures = len(sides.prompts), len(sides.policy.temperatures)
    time, seconds_together, seconds_apart = alternating(sides.together, sides.apart, pairs, warm=1)
    return {
        "time": time,
        "by count of operations": sides.operations(ours, n) / sides.operations(theirs, n * n_temperatures),
        "prompt tokens read": ours.prompt / theirs.prompt,
        "seconds together": seconds_together,
        "seconds apart": seconds_apart,
        "prompt tokens together": ours.prompt,
        "prompt tokens apart": theirs.prompt,
        "answer tokens together": ours.answer,
        "answer tokens apart": theirs.answer,
        "shortest prompt": min(map(len, sides.prompts)),
        "same answers": same / (n * n_temperatures * K),
    }


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--questions", type=int, default=32, help="number of questions with shared examples")
    parser.add_argument("--examples", type=int, default=20)
    parser.add_argument("--grid", default=GRID)
    options = parser.parse_args()
    model, tokenizer = load_model(dtype="float32")
    policy = Decoding(options.grid, max_new_tokens=16, stop=("\n",))
    values = {}
    for name, own in (("same examples", False), ("own examples", True)):
        n = options.questions // 4 if own else options.questions
        prompts = few_shot_prompts(tokenizer, n, options.examples, own)
        values[name] = measure(Sides(model, tokenizer, prompts, policy), options.pairs)
    each_once = all(
        round(values[name]["prompt tokens apart"] / values[name]["prompt tokens together"], 6)
        == len(policy.temperatures)
        for name in values
    )
    long_enough = all(value["shortest prompt"] >= 300 for value in values.values())
    report(
        "grid",
        {
            **{f"time, {name}": value["time"] for name, value in values.items()},
            **{f"operations, {name}": value["by count of operations"] for name, value in values.items()},
            "each prompt read once": each_once,
        },
        f"≤ {BAR} of the time of 5 separate runs, each prompt read once",
        each_once and long_enough and all(value["time"] <= BAR for value in values.values()),
        settings=values,
        grid=options.grid,
        k=K,
        questions=options.questions,
        pairs=options.pairs,
    )


if __name__ == "__main__":
    main()
