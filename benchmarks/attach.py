"""Compare generation with and without an attached probe: speed, tokens, logits and device synchronisations per token.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses Llama-3.2-1B with random
weights, and prompts of random tokens.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.result import alternating, report
from benchmarks.sampling import embedded, random_llama
from extract.models.loading import model_identity
from extract.prompts import PromptTemplate
from extract.sampling.local.batching import left_padded
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import LinearHead


class Waits(TorchDispatchMode):
    """Context manager that counts device synchronisations, such as `item()` calls and copies between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it makes the CPU wait for a device."""
        out = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        moved = name in ("_to_copy", "copy_") and any(
            isinstance(one, Tensor) and isinstance(out, Tensor) and one.device != out.device for one in args
        )
        self.count += name in ("_local_scalar_dense", "nonzero", "is_nonzero", "equal") or moved
        return out


def random_tokenizer() -> Any:
    """Return a tokenizer without a vocabulary."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")), unk_token="?")


def random_probe(model: Any, tokenizer: Any) -> ConfidenceProbe:
    """Return a random probe on the upper half of the layers. It is as expensive as the default probe."""
    n_layers = model.config.num_hidden_layers + 1
    layers = list(range(n_layers // 2, n_layers))
    head = LinearHead(len(layers) * model.config.hidden_size)
    head.weight.normal_(generator=torch.Generator().manual_seed(0))
    config = {
        "model": asdict(model_identity(model, tokenizer)),
        "signal": "hidden",
        "layers": layers,
        "position": "last_prompt",
        "target": "capability",
        "d_model": len(head.weight),
        "prompt": asdict(PromptTemplate(chat=tokenizer.chat_template is not None)),
    }
    return ConfidenceProbe(head, Platt(1.0, 0.0), config)


def logits_of(model: Any, action: Any) -> tuple[list[Tensor], Tensor]:
    """Return the logits of every forward pass during generation, and the generated sequences."""
    seen: list[Tensor] = []
    handle = model.register_forward_hook(lambda module, args, output: seen.append(output.logits.clone()))
    try:
        return seen, action()
    finally:
        handle.remove()


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    model, tokenizer, prompts, _ = (random_llama if options.random else embedded)(options.questions)
    tokenizer = random_tokenizer() if options.random else tokenizer
    attached = random_probe(model, tokenizer).attach(model, tokenizer)
    ids, mask = left_padded(prompts, pad=0, device=model.device)
    fixed = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}

    def with_probe(tokens: int = options.tokens) -> Tensor:
        return attached.generate(prompts, max_new_tokens=tokens, **fixed).sequences

    @torch.inference_mode()
    def without(tokens: int = options.tokens) -> Tensor:
        out = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, **fixed)
        tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
        return torch.as_tensor(out)

    ratio, seconds_without, seconds_with = alternating(without, with_probe, pairs=options.pairs)
    (logits, tokens), (plain_logits, plain_tokens) = logits_of(model, with_probe), logits_of(model, without)
    same_tokens = torch.equal(tokens[:, ids.shape[1] :], plain_tokens[:, ids.shape[1] :])
    same_logits = len(logits) == len(plain_logits) and all(map(torch.equal, logits, plain_logits))
    extra_waits = []
    for n_tokens in (4, 24):
        counts = []
        for action in (with_probe, without):
            with Waits() as waits:
                action(n_tokens)
            counts.append(waits.count)
        extra_waits.append(counts[0] - counts[1])
    report(
        "attach",
        ratio,
        "≥ 0.95 of the tokens/s, tokens and logits identical, as many extra waits at 24 tokens as at 4",
        ratio >= 0.95 and same_tokens and same_logits and extra_waits[0] == extra_waits[1],
        tokens_per_second_with=tokens.shape[0] * options.tokens / seconds_with,
        tokens_per_second_without=tokens.shape[0] * options.tokens / seconds_without,
        same_tokens=same_tokens,
        same_logits=same_logits,
        extra_waits_at_4_and_24_tokens=extra_waits,
        prompts=len(prompts),
        prompt_tokens=statistics.median(map(len, prompts)),
        tokens=options.tokens,
        pairs=options.pairs,
        dtype=str(model.dtype).removeprefix("torch."),
        model="random Llama-3.2-1B shape" if options.random else "smollm2-135m-instruct",
    )


if __name__ == "__main__":
    main()
