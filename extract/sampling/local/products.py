"""Fast matrix products for the linear layers of models on CPUs.

torch computes float32 products with MKL, which uses AVX-512 instructions only on Intel CPUs. oneDNN is also included in
torch. It is about twice as fast as MKL on other CPUs with AVX-512, and slightly faster on CPUs without it. On CPUs
without bfloat16 instructions, products of bfloat16 matrices are faster after a conversion to float32. The conversion
does not reduce the precision of the results. Products with weights that are packed in oneDNN's own layout take 5 to 35
% less time than products with unpacked weights.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

#: Number of weights that are converted at a time.
_WEIGHTS = 2**21

#: Number of the call in which a layer's weight is packed. Packing pays off after 10 to 20 more calls.
_PACKING_CALL = 8
#: Maximum size of a model's packed weights in bytes.
_PACKED_BYTES = 2**30

#: Whether this build of torch contains oneDNN.
_HAS_ONEDNN = torch.backends.mkldnn.is_available()

_lock = threading.Lock()
_users: Counter[int] = Counter()  # number of with blocks that use a model, by the model's id()
_layers: dict[int, list[nn.Linear]] = {}  # layers whose forward method is replaced


def linear_float32(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``inputs @ weight.T + bias`` for float32 tensors, without gradients, with oneDNN if it is available."""
    if not _HAS_ONEDNN:
        return linear(inputs, weight, bias)
    # the operator that torch.compile uses for linear layers on CPUs
    return torch.as_tensor(torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], ""))


def linear_bfloat16(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``inputs @ weight.T + bias`` for bfloat16 tensors in float32, and round the result to bfloat16.

    `weight` [output feature, input feature] is converted a few rows at a time.
    """
    n_rows = max(1, _WEIGHTS // weight.shape[1])
    biases = [None] * len(weight) if bias is None else [part.float() for part in bias.split(n_rows)]
    precise = inputs.float()
    parts = [
        linear_float32(precise, part.float(), of_part).bfloat16()
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
    """Context manager that speeds up a model's linear layers on CPUs.

    This applies to float32 layers, and to bfloat16 layers if `has_bfloat16` returns False.
    """
    with _lock:
        _users[id(model)] += 1
        if _users[id(model)] == 1:
            slow = {torch.float32} if has_bfloat16() else {torch.float32, torch.bfloat16}
            _layers[id(model)] = [layer for layer in model.modules() if _is_slow(layer, slow)]
            n_left = _PACKED_BYTES // torch.float32.itemsize if _HAS_ONEDNN else 0
            for layer in _layers[id(model)]:
                fits = layer.weight.numel() <= n_left
                n_left -= layer.weight.numel() if fits else 0
                vars(layer)["forward"] = _FastForward(layer, fits)  # replaces the method on this object only
    try:
        yield
    finally:
        with _lock:
            _users[id(model)] -= 1
            if not _users[id(model)]:
                for layer in _layers.pop(id(model)):
                    del layer.forward


def _is_slow(layer: nn.Module, slow: set[torch.dtype]) -> bool:
    if type(layer) is not nn.Linear or "forward" in vars(layer):  # a hook, for example of accelerate
        return False
    if type(layer.weight) is not nn.Parameter:  # for example quantized
        return False
    return layer.weight.dtype in slow and layer.weight.device.type == "cpu"


class _FastForward:
    """Forward pass of a linear layer. If `packs` is true, the weight is packed on the `_PACKING_CALL`-th call."""

    def __init__(self, layer: nn.Linear, packs: bool) -> None:
        self._layer, self._packs = layer, packs
        self._n_calls = Counter[int]()  # by thread, so that rounding does not depend on the speed of other threads
        self._packed: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:  # the parameter is named as in nn.Linear.forward
        weight, bias = self._layer.weight, self._layer.bias
        thread = threading.get_ident()
        self._n_calls[thread] += 1
        if self._packs and self._n_calls[thread] >= _PACKING_CALL:
            if self._packed is None:
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.float())
            precise = None if bias is None else bias.float()
            return linear_float32(input.float(), self._packed, precise).to(weight.dtype)
        return (linear_float32 if weight.dtype == torch.float32 else linear_bfloat16)(input, weight, bias)
