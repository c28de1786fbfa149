"""Matrix products of bfloat16 models on CPUs without bfloat16 instructions.

On such CPUs, converting the matrices to float32 and multiplying them is about three times as fast as multiplying them
in bfloat16. The precision is the same.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

#: Number of weights that are converted at a time.
_WEIGHTS = 2**21

_lock = threading.Lock()
_users: Counter[int] = Counter()  # number of with blocks that use a model, by the model's id()
_layers: dict[int, list[nn.Linear]] = {}  # layers whose products are replaced


def linear_in_float32(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``inputs @ weight.T + bias`` in float32, and round the result to the dtype of `inputs`.

    `weight` [output feature, input feature] is converted a few rows at a time.
    """
    n_rows = max(1, _WEIGHTS // weight.shape[1])
    biases = [None] * len(weight) if bias is None else [part.float() for part in bias.split(n_rows)]
    precise = inputs.float()
    parts = [
        linear(precise, part.float(), of_part).to(inputs.dtype)
        for part, of_part in zip(weight.split(n_rows), biases, strict=False)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


def has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 instructions. True if torch is too old to report this."""
    if not hasattr(torch.cpu, "get_capabilities"):
        return True
    capabilities = torch.cpu.get_capabilities()
    return any(value for name, value in capabilities.items() if name.endswith("bf16"))


@contextmanager
def fast_products(model: Any) -> Iterator[None]:
    """Compute bfloat16 linear layers in float32 inside the with block, unless the CPU has bfloat16 instructions."""
    with _lock:
        _users[id(model)] += 1
        if _users[id(model)] == 1:
            _layers[id(model)] = [] if has_bfloat16() else [layer for layer in model.modules() if _is_slow(layer)]
            for layer in _layers[id(model)]:
                # replaces the method on this object only
                layer.forward = partial(_forward, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        with _lock:
            _users[id(model)] -= 1
            if not _users[id(model)]:
                for layer in _layers.pop(id(model)):
                    del layer.forward


def _is_slow(layer: nn.Module) -> bool:
    if type(layer) is not nn.Linear or "forward" in vars(layer):  # a hook, for example of accelerate
        return False
    return layer.weight.dtype == torch.bfloat16 and layer.weight.device.type == "cpu"


def _forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return linear_in_float32(inputs, layer.weight, layer.bias)
