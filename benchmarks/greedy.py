"""Compare the local sampler's greedy tokens for 50 questions with those of transformers' unbatched `generate`."""

from __future__ import annotations

import torch

from benchmarks.result import report
from extract.models.loading import load_model
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.questions import load_questions
from extract.sampling.local.token_sampler import TokenSampler


def main() -> None:
    """Print the results."""
    model, tokenizer = load_model(dtype="float32")
    questions = load_questions("facts", 50, seed=1)
    template = PromptTemplate("{question} Answer briefly.")
    # a long introduction for some questions, to mix lengths
    prompts = [
        template.encode(tokenizer, "Think of a map, a book and a table. " * (i % 5) + q.text)
        for i, q in enumerate(questions)
    ]
    decoding = Decoding(temperature=0, max_new_tokens=24)
    answers = TokenSampler(model, tokenizer, decoding).sample([q.id for q in questions], prompts, range(1))
    same = 0
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False)
        same += answer.token_ids == expected[0, len(prompt) :].tolist()
    lengths = [len(prompt) for prompt in prompts]
    report(
        "greedy",
        same / 50,
        "1 (identical for all 50)",
        same == 50,
        prompt_tokens=[min(lengths), max(lengths)],
        tokens=sum(len(a.token_ids) for a in answers),
    )


if __name__ == "__main__":
    main()
