"""Time two ways to score the four options of a question: all in one sequence, or each in its own sequence.

SmolLM2-135M-Instruct, which `make install` installs, scores random prompts without a common prefix.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.result import alternating, report
from extract import load_model
from extract.likelihood.scoring import Item, score


def main() -> None:
    """Time joint and separate scoring of the options, and print the ratio of the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=100, help="length of the shortest prompt in tokens")
    parser.add_argument("--longest", type=int, default=8, help="largest number of tokens in an option")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    model, tokenizer = load_model()
    rng = np.random.default_rng(0)

    def tokens(n: int) -> list[int]:
        return rng.integers(len(tokenizer), size=n).tolist()

    lengths = rng.integers(1, options.longest + 1, size=(options.questions, 4))
    prompts = [tokens(options.prompt + int(extra)) for extra in rng.integers(50, size=options.questions)]
    items = [Item(prompt, [tokens(int(n)) for n in row]) for prompt, row in zip(prompts, lengths, strict=True)]
    alone = [Item(item.prompt, [one]) for item in items for one in item.continuations]
    difference = np.abs(np.ravel(score(model, items)) - np.ravel(score(model, alone))).max()
    ratio, ours, theirs = alternating(lambda: score(model, items), lambda: score(model, alone), options.pairs, warm=1)
    report(
        "likelihood",
        round(ratio, 3),
        "≤ 0.5 of the time",
        ratio <= 0.5,
        seconds=round(ours, 2),
        seconds_alone=round(theirs, 2),
        largest_difference_in_nats=float(difference),
        **vars(options),
    )


if __name__ == "__main__":
    main()
