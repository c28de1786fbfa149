"""Compare the log-probabilities stored during sampling with those from a teacher-forced pass, on the default store."""

from __future__ import annotations

import torch

from benchmarks.quality import default_data
from benchmarks.result import report
from extract.models.loading import load_model
from extract.models.store_model import encode_questions
from extract.prompts import PromptTemplate


def main() -> None:
    """Print the largest difference between stored and recomputed log-probabilities, in nats."""
    store = default_data().store
    model, tokenizer = load_model(dtype="float32")
    template = PromptTemplate(**store.identity["policy"]["decoding"]["prompt"])
    prompts = dict(
        zip((q.id for q in store.questions), encode_questions(tokenizer, template, store.questions), strict=True)
    )
    rows = store.samples.read().to_pylist()[::12]
    worst, n_tokens = 0.0, 0
    for row in rows:
        prompt, answer = prompts[row["question_id"]], row["token_ids"]
        with torch.inference_mode():
            logits = (
                model(torch.tensor([prompt + answer]), logits_to_keep=len(answer) + 1).logits[0, :-1].log_softmax(-1)
            )
        expected = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        worst = max(worst, float((expected - torch.tensor(row["logprobs"])).abs().max()))
        n_tokens += len(answer)
    report("logprobs", worst, "≤ 1e-3 nats in float32", worst <= 1e-3, answers=len(rows), tokens=n_tokens)


if __name__ == "__main__":
    main()
