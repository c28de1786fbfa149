"""Compare two ways to read few-shot prompts: each prompt in full, or the shared prefix only once.

The prefix has at least 300 tokens. The benchmark times `read_questions` and `score`, and compares the confidences and
the hidden states.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.result import alternating, report
from extract.models.loading import load_model, model_identity
from extract.prompts import PromptTemplate
from extract.questions import load_questions
from extract.sampling.local.batching import common_prefix
from extract.signals.reading import read_questions
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import LinearHead
from probes.saved.prompt_starts import PromptStarts

BAR, BAR_VALUES = 0.35, 1e-5
LAYERS = range(31)


@contextmanager
def whole_prompts() -> Iterator[None]:
    """Disable prefix sharing inside the `with` block."""

    def nothing(*args: Any, **options: Any) -> None:
        return None

    with patch("extract.signals.reading.read_prefix", nothing), patch.object(PromptStarts, "of", nothing):
        yield


def random_probe(model: Any, tokenizer: Any, prompt: PromptTemplate) -> ConfidenceProbe:
    """Return a probe with random weights that reads layer 15."""
    torch.manual_seed(0)
    head = LinearHead(model.config.hidden_size)
    head.weight.normal_()
    head.scale.fill_(100)
    config = {
        "head": "linear",
        "d_model": model.config.hidden_size,
        "sizes": {},
        "calibrator": "platt",
        "signal": "hidden",
        "layers": [15],
        "position": "last_prompt",
        "target": "capability",
        "model": vars(model_identity(model, tokenizer)),
        "prompt": prompt.record(),
    }
    return ConfidenceProbe(head, Platt(1.0, 0.0), config)


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=495)
    parser.add_argument("--single", type=int, default=16, help="number of questions that are scored in separate calls")
    parser.add_argument("--examples", type=int, default=22)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    model, tokenizer = load_model(dtype="float32")
    asked = load_questions("facts")
    shown = tuple((one.text or "", one.references[0]) for one in asked[-options.examples :])
    prompt = PromptTemplate("qa", chat=False, examples=shown)
    texts = [one.text or "" for one in asked[: options.questions]]
    prompts = [prompt.encode(tokenizer, text) for text in texts]
    confident = random_probe(model, tokenizer, prompt).attach(model, tokenizer)
    ways = {
        "read": lambda: read_questions(model, prompts, ["hidden"], LAYERS)["hidden"],
        "score": lambda: confident.score(texts).confidence,
        "score, one question per call": lambda: torch.cat(
            [confident.score(text).confidence for text in texts[: options.single]]
        ),
    }
    value, details, differences = {}, {}, {}
    for name, way in ways.items():
        found: dict[str, Any] = {}

        def shared(found: dict[str, Any] = found, way: Any = way) -> None:
            found["shared"] = way()

        def whole(found: dict[str, Any] = found, way: Any = way) -> None:
            with whole_prompts():
                found["whole"] = way()

        value[name], ours, theirs = alternating(shared, whole, options.pairs, warm=1)
        details |= {f"seconds, {name}": ours, f"seconds with whole prompts, {name}": theirs}
        if name == "read":
            differences[name] = max(
                float((states - found["whole"][key]).abs().max() / found["whole"][key].abs().max())
                for key, states in found["shared"].items()
            )
        else:
            differences[name] = float((found["shared"] - found["whole"]).abs().max())
    prefix = len(common_prefix(prompts, step=1))
    report(
        "prefix",
        {"time": value, "largest difference": differences},
        f"≤ {BAR} of the time, values equal within {BAR_VALUES:g}, prefix of at least 300 tokens",
        max(value.values()) <= BAR and max(differences.values()) <= BAR_VALUES and prefix >= 300,
        **details,
        questions=len(prompts),
        prefix_tokens=prefix,
        mean_prompt_tokens=sum(map(len, prompts)) / len(prompts),
    )


if __name__ == "__main__":
    main()
