"""Measure the time to read several signals in a single pass, relative to one pass per signal.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses the architecture of
Qwen3-0.6B with random weights.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.hidden import load
from benchmarks.result import alternating, report
from extract.signals.base import Answer
from extract.signals.reading import read_answers

#: `rollout_max` takes O(n³) and is left out. `tokens` includes negative log-likelihood and entropy.
SIGNALS = ("tokens", "entropy_profile", "evolution", "early_exit", "attention_entropy", "rollout", "macs")


def answers(n_questions: int, per_question: int, n_prompt: int, n_answer: int) -> list[Answer]:
    """Return distinct random answers with lengths around `n_answer`."""
    generator = torch.Generator().manual_seed(0)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 1000, (n,), generator=generator).tolist())

    prompts = [tokens(n_prompt + i) for i in range(n_questions)]
    return [Answer(prompt, tokens(n_answer + j)) for prompt in prompts for j in range(per_question)]


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    model: Any = load(options.random)
    asked = answers(4, 4, 40, 24)
    alone: dict[str, float] = {}

    def together() -> None:
        read_answers(model, asked, SIGNALS)

    def apart() -> None:
        for name in SIGNALS:
            start = time.perf_counter()
            read_answers(model, asked, [name])
            alone[name] = time.perf_counter() - start

    ratio, fused, separate = alternating(together, apart, options.pairs, warm=1)
    report(
        "read",
        ratio,
        "≤ 0.5 of the time",
        ratio <= 0.5,
        seconds_together=fused,
        seconds_apart=separate,
        seconds_of_each=alone,
        answers=len(asked),
        answer_tokens=sum(len(answer.content) for answer in asked),
        model="random Qwen3-0.6B shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
