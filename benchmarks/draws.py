"""Compare the first tokens of 5,000 draws with softmax(logits / T) using χ² tests, for 3 prompts and 2 temperatures."""

from __future__ import annotations

import torch
from scipy import stats

from benchmarks.result import report
from extract.models.loading import load_model
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.sampling.local.token_sampler import TokenSampler

QUESTIONS = ("What is the capital of Peru?", "What is 7 times 8?", "Which chemical element has the symbol K?")


def p_value(model: object, tokenizer: object, question: str, temperature: float, n: int = 5000) -> float:
    """Draw the first token of `n` answers, and return the p-value of a χ² test against the model's probabilities.

    Tokens with an expected count below 5 are merged into one cell.
    """
    prompt = PromptTemplate("{question} Answer briefly.").encode(tokenizer, question)  # type: ignore[arg-type]
    sampler = TokenSampler(model, tokenizer, Decoding(temperature=temperature, max_new_tokens=1), max_rows=500)
    tokens = []
    for start in range(0, n, 500):
        tokens += [answer.token_ids[0] for answer in sampler.sample([question], [prompt], range(start, start + 500))]
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, -1].double()  # type: ignore[operator]
    expected = (logits / temperature).softmax(-1) * n
    observed = torch.bincount(torch.tensor(tokens), minlength=len(expected)).double()
    rare = expected < 5
    cells = [torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)]) for counts in (observed, expected)]
    return float(stats.chisquare(cells[0].numpy(), cells[1].numpy()).pvalue)


def main() -> None:
    """Print the smallest p-value of all tests."""
    model, tokenizer = load_model(dtype="float32")
    values = {f"{question} T={t}": p_value(model, tokenizer, question, t) for question in QUESTIONS for t in (0.7, 1.2)}
    report(
        "draws",
        min(values.values()),
        "no p-value below 0.01",
        min(values.values()) >= 0.01,
        p_values=values,
        draws=5000,
    )


if __name__ == "__main__":
    main()
