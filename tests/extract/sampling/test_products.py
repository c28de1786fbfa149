"""Tests of bfloat16 products that are computed in float32."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from extract.sampling.local import products
from extract.sampling.local.products import fast_products, linear_in_float32


@pytest.mark.parametrize("n_weights", [2**21, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_the_exact_one_rounded_to_bfloat16(
    n_weights: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WEIGHTS", n_weights)
    torch.manual_seed(0)
    layer, inputs = nn.Linear(40, 30, bias=bias).bfloat16(), torch.randn(2, 5, 40).bfloat16()
    exact = inputs.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    with torch.inference_mode():
        found = linear_in_float32(inputs, layer.weight, layer.bias)
    assert found.dtype == torch.bfloat16
    # half of the distance between neighbours, and the error of the sum in float32
    torch.testing.assert_close(found.double(), exact, rtol=2.0**-8, atol=1e-6)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_only_bfloat16_layers_are_replaced_and_only_on_cpus_that_need_it(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16", lambda: has_bfloat16)
    slow, other, hooked = nn.Linear(3, 3).bfloat16(), nn.Linear(3, 3), nn.Linear(3, 3).bfloat16()
    hooked.forward = hook = lambda inputs: inputs  # type: ignore[method-assign]
    model = nn.ModuleList([slow, other, hooked])
    with fast_products(model):
        with fast_products(model):
            assert ("forward" in vars(slow)) == (not has_bfloat16)
        assert ("forward" in vars(slow)) == (not has_bfloat16)
        assert "forward" not in vars(other)
        assert hooked.forward is hook
        slow(torch.zeros(1, 3).bfloat16())
    assert "forward" not in vars(slow)
    assert hooked.forward is hook
