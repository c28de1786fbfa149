"""Compare the speed of the sampler, `generate`, the matmuls alone, and the sampler without a shared prefix.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses Llama-3.2-1B with random
weights, and prompts of random tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.result import report
from extract.models.loading import end_tokens
from extract.policy import Decoding
from extract.sampling.local.batching import common_prefix, left_padded
from extract.sampling.local.token_sampler import TokenSampler

Prompts = list[list[int]]


class NoTokenizer:
    """Tokenizer without an end-of-sequence token, for models with random weights."""

    eos_token_id = None

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        """Return an empty string."""
        return ""


def embedded(n: int) -> tuple[Any, Any, Prompts, Prompts]:
    """Return SmolLM2-135M-Instruct, its tokenizer, and the zero-shot and few-shot prompts of n questions."""
    from extract.models.loading import load_model
    from extract.prompts import PromptTemplate
    from extract.questions import load_questions

    model, tokenizer = load_model(dtype="float32")
    asked, examples = load_questions("facts")[:n], load_questions("facts")[n : n + 20]
    shots = "".join(f"Question: {one.text} Answer: {one.references[0]}\n" for one in examples)
    plain = PromptTemplate("{question} Answer briefly.")
    few_shot = PromptTemplate(f"{shots}Question: {{question}} Answer:", chat=False)
    prompts = [[template.encode(tokenizer, one.text or "") for one in asked] for template in (plain, few_shot)]
    return model, tokenizer, prompts[0], prompts[1]


def random_llama(n: int, dtype: torch.dtype | None = None) -> tuple[Any, Any, Prompts, Prompts]:
    """Return Llama-3.2-1B with random weights, a `NoTokenizer`, and prompts of random tokens.

    The default dtype is bfloat16 on a GPU, and float32 on a CPU.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    cuda = torch.cuda.is_available()
    with torch.device("cuda" if cuda else "cpu"):
        model = LlamaForCausalLM(config).to(dtype or (torch.bfloat16 if cuda else torch.float32)).eval()
    tokens = torch.randint(0, 128_256, (n + 1, 400)).tolist()
    plain = [tokens[i][: 30 + i % 20] for i in range(n)]
    return model, NoTokenizer(), plain, [tokens[n][:340] + prompt for prompt in plain]


class Sides:
    """The functions that are timed. Each returns the number of answer tokens."""

    def __init__(self, model: Any, tokenizer: Any, max_new_tokens: int) -> None:
        self.model = model
        self.decoding = Decoding(temperature=0.7, max_new_tokens=max_new_tokens)
        self.sampler = TokenSampler(model, tokenizer, self.decoding)
        self.n_drawn = 0
        self.end = torch.tensor(end_tokens(model, tokenizer), device=model.device)

    def ours(self, prompts: Prompts, k: int) -> int:
        """Run the local sampler."""
        answers = self.sampler.sample([str(i) for i in range(len(prompts))], prompts, range(k))
        self.n_drawn = sum(len(answer.token_ids) for answer in answers)
        return self.n_drawn

    def unshared(self, prompts: Prompts, k: int) -> int:
        """Run the local sampler without a shared prefix."""
        with patch("extract.sampling.local.token_sampler.common_prefix", lambda prompts: []):
            return self.ours(prompts, k)

    @torch.inference_mode()
    def generate(self, prompts: Prompts, k: int) -> int:
        """Run the model's own `generate`. Tokens after the end of an answer do not count."""
        ids, mask = left_padded(prompts, pad=0, device=self.model.device)
        out = self.model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=0.7,
            top_k=0,
            top_p=1.0,
            max_new_tokens=self.decoding.max_new_tokens,
            num_return_sequences=k,
            pad_token_id=0,
        )
        ended = torch.isin(out[:, ids.shape[1] :], self.end)
        return int((ended.cumsum(-1) - ended.long() == 0).sum())


def seconds_per_token(action: Any, *arguments: Any) -> float:
    """Call a function that returns a number of tokens, and return the seconds per token."""
    start = time.perf_counter()
    n_tokens = action(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / n_tokens


def matmul_rate(model: Any) -> float:
    """Return the FLOP/s of a product of square matrices in the model's dtype."""
    size = 8192 if torch.cuda.is_available() else 2048
    square = torch.randn(size, size, device=model.device, dtype=model.dtype)
    start = time.perf_counter()
    for _ in range(3):
        square @ square
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 3 * 2 * size**3 / (time.perf_counter() - start)


def flop_per_token(model: Any, prompts: Prompts, k: int, n_drawn: int) -> float:
    """Return the FLOPs of all weight-matrix products per sampled token.

    The FLOPs for a prompt are counted once, not once per answer.
    """
    head = model.lm_head.weight.numel()
    inner = sum(p.numel() for p in model.model.layers.parameters() if p.dim() == 2)
    shared = len(common_prefix(prompts))
    n_read = shared + sum(len(prompt) - shared for prompt in prompts)
    # the last drawn token is not processed, and only the last token of a prompt passes through the head
    n_rows = len(prompts) * k
    return 2 * (inner * (n_read + n_drawn - n_rows) + head * (len(prompts) + n_drawn - n_rows)) / n_drawn


def main() -> None:
    """Run the sampling benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--questions", type=int, default=16)
    options = parser.parse_args()
    model, tokenizer, plain, few_shot = (random_llama if options.random else embedded)(options.questions)
    sides = Sides(model, tokenizer, max_new_tokens=64 if options.random else 16)
    for action in (sides.ours, sides.generate):
        action(plain[:2], 2)  # warm-up

    speed, limit, shared = [], [], []
    for _ in range(options.pairs):
        rate = matmul_rate(model)
        theirs, ours = (seconds_per_token(side, plain, 8) for side in (sides.generate, sides.ours))
        speed.append((theirs / ours, 1 / ours, 1 / theirs))
        limit.append((flop_per_token(model, plain, 8, sides.n_drawn) / ours / rate, rate / 1e9))
    for _ in range(options.pairs):
        with_prefix, without = (seconds_per_token(side, few_shot, 4) for side in (sides.ours, sides.unshared))
        shared.append(with_prefix / without)

    over_generate, ours_rate, generate_rate = map(statistics.median, zip(*speed, strict=True))
    share, gflops = map(statistics.median, zip(*limit, strict=True))
    prefix = statistics.median(shared)
    bar = 3.0 if torch.cuda.is_available() else 2.5
    report(
        "sampling",
        {
            "over generate": over_generate,
            "share of the matrix-product limit": share,
            "few-shot time, shared over not": prefix,
        },
        f"≥ {bar} over generate; few-shot ≤ 0.5 of the time; share stated (goal 0.5)",
        over_generate >= bar and prefix <= 0.5,
        tokens_per_second=ours_rate,
        tokens_per_second_generate=generate_rate,
        matmul_gflops=gflops,
        prompts=len(plain),
        prompt_tokens=statistics.median(map(len, plain)),
        few_shot_shared_tokens=len(common_prefix(few_shot)),
        pairs=options.pairs,
        dtype=str(model.dtype).removeprefix("torch."),
        model="random Llama-3.2-1B shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
