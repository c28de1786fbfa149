"""Probes for the tiny model, with random weights and the configs of saved probes."""

from __future__ import annotations

from typing import Any

import torch

from extract.models.loading import model_identity
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import LinearHead


def probe_config(model: Any, tokenizer: Any, **changes: Any) -> dict[str, Any]:
    """Return the config of a linear probe of questions that reads layer 2. Keyword arguments add or replace fields."""
    return {
        "head": "linear",
        "d_model": 32,
        "sizes": {},
        "calibrator": "platt",
        "signal": "hidden",
        "layers": [2],
        "position": "last_prompt",
        "target": "capability",
        "model": {**model_identity(model, tokenizer).__dict__},
        "prompt": {"template": "Q: {question} A:", "system": None, "chat": True},
        **changes,
    }


def linear_probe(model: Any, tokenizer: Any, bias: float = 0.0, **changes: Any) -> ConfidenceProbe:
    """Return a linear probe with random weights. See `probe_config` for the keyword arguments."""
    torch.manual_seed(3)
    head = LinearHead(32)
    head.weight.normal_()
    head.mean.normal_()
    head.scale.uniform_(20, 60)  # so that the confidences differ and none is near 0 or 1
    head.bias.fill_(bias)
    return ConfidenceProbe(head, Platt(0.7, -0.2), probe_config(model, tokenizer, **changes))
