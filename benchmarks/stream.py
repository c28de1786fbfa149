"""Compare the speed, text and logits of streaming and plain generation.

The model is SmolLM2-135M-Instruct, and the probes are random.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor

from benchmarks.attach import logits_of, random_probe
from benchmarks.result import alternating, report
from benchmarks.sampling import embedded
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.confidence import ConfidentModel
from probes.saved.head import Head, LinearHead
from probes.saved.prefixes import PrefixCalibrator
from probes.saved.sequence_head import AttentionHead

LAYER = 18


def attached_probes(model: Any, tokenizer: Any) -> dict[str, ConfidentModel]:
    """Return one probe for each kind of feature, each attached to the model."""
    question = random_probe(model, tokenizer)
    d_model = model.config.hidden_size

    def of_answers(head: Head, signal: str, position: str) -> ConfidenceProbe:
        for values in (head.mean, head.get_buffer("weight")):
            values.normal_(generator=torch.Generator().manual_seed(0))
        own = {"signal": signal, "layers": [LAYER], "position": position, "target": "response", "d_model": d_model}
        prefixes = PrefixCalibrator([Platt(0.5, 0.0)] * 3, range(1, 65))
        return ConfidenceProbe(head, Platt(1.0, 0.0), {**question.config, **own}, prefixes)

    probes = {
        "question": question,
        "mean_answer": of_answers(LinearHead(d_model), "hidden", "mean_answer"),
        "attention": of_answers(AttentionHead(d_model, 4), "hidden_tokens", "answer_tokens"),
    }
    return {name: probe.attach(model, tokenizer) for name, probe in probes.items()}


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    model, tokenizer, (prompt,), _ = embedded(1)
    fixed = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": options.tokens, "min_new_tokens": options.tokens}
    ids = torch.tensor([prompt], device=model.device)

    @torch.inference_mode()
    def plain() -> str:
        out: Tensor = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
        return str(tokenizer.decode(out[0, len(prompt) :], skip_special_tokens=True))

    logits, text = logits_of(model, plain)
    ratios, same, seconds = {}, {}, {}
    for name, attached in attached_probes(model, tokenizer).items():

        def streamed(attached: ConfidentModel = attached) -> str:
            return [step.text for step in attached.stream(prompt, **fixed)][-1]

        own_logits, own_text = logits_of(model, streamed)
        same[name] = own_text == text and len(own_logits) == len(logits) and all(map(torch.equal, own_logits, logits))
        ratios[name], without, with_probe = alternating(plain, streamed, pairs=options.pairs)
        seconds[name] = {"plain": without, "streamed": with_probe}
    report(
        "stream",
        ratios,
        "≥ 0.95 of the tokens/s, text and logits identical",
        min(ratios.values()) >= 0.95 and all(same.values()),
        same_text_and_logits=same,
        tokens_per_second={
            name: {side: options.tokens / time for side, time in times.items()} for name, times in seconds.items()
        },
        prompt_tokens=len(prompt),
        tokens=options.tokens,
        pairs=options.pairs,
        dtype=str(model.dtype).removeprefix("torch."),
    )


if __name__ == "__main__":
    main()
