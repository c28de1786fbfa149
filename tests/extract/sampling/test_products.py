"""Tests of the fast matrix products of linear layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from extract.sampling.local import products
from extract.sampling.local.products import fast_products, linear_bfloat16, linear_float32


def exact(inputs: Tensor, layer: nn.Linear) -> Tensor:
    """Return the output of a layer, computed in float64."""
    return linear(inputs.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())


@pytest.mark.parametrize("n_weights", [2**21, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_a_bfloat16_product_is_the_exact_one_rounded_to_bfloat16(
    n_weights: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_WEIGHTS", n_weights)
    torch.manual_seed(0)
    layer, inputs = nn.Linear(40, 30, bias=bias).bfloat16(), torch.randn(2, 5, 40).bfloat16()
    with torch.inference_mode():
        found = linear_bfloat16(inputs, layer.weight, layer.bias)
    assert found.dtype == torch.bfloat16
    # half of the distance between neighbours, and the error of the sum in float32
    torch.testing.assert_close(found.double(), exact(inputs, layer), rtol=2.0**-8, atol=1e-6)


INPUTS = {
    "one row": lambda: torch.randn(1, 1, 40),
    "prompts": lambda: torch.randn(3, 7, 40),
    "two dimensions": lambda: torch.randn(5, 40),
    "last tokens": lambda: torch.randn(3, 7, 40)[:, -1],
    "transposed": lambda: torch.randn(40, 5).T,
    "no rows": lambda: torch.randn(0, 1, 40),
}


@pytest.mark.parametrize("has_onednn", [torch.backends.mkldnn.is_available(), False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_a_float32_product_is_exact_up_to_rounding(
    has_onednn: bool, bias: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_HAS_ONEDNN", has_onednn)
    torch.manual_seed(0)
    layer, inputs = nn.Linear(40, 30, bias=bias), INPUTS[name]()
    with torch.inference_mode():
        found = linear_float32(inputs, layer.weight, layer.bias)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact(inputs, layer), rtol=0, atol=2e-6)


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_layers_are_replaced_inside_the_block_if_there_are_faster_products(
    has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16", lambda: has_bfloat16)
    single, half, double, hooked = (
        nn.Linear(3, 3),
        nn.Linear(3, 3).bfloat16(),
        nn.Linear(3, 3).double(),
        nn.Linear(3, 3),
    )
    hooked.forward = hook = lambda inputs: inputs  # type: ignore[method-assign]
    model = nn.ModuleList([single, half, double, hooked])
    expected = [True, not has_bfloat16, False]
    with torch.inference_mode(), fast_products(model):
        with fast_products(model):
            assert ["forward" in vars(layer) for layer in (single, half, double)] == expected
        assert ["forward" in vars(layer) for layer in (single, half, double)] == expected
        assert hooked.forward is hook
        for layer in (single, half):
            inputs = torch.ones(1, 3, dtype=layer.weight.dtype)
            torch.testing.assert_close(layer(inputs).double(), exact(inputs, layer), rtol=2.0**-8, atol=1e-6)
    assert not any("forward" in vars(layer) for layer in (single, half, double))
    assert hooked.forward is hook


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_products_with_packed_weights_are_exact_up_to_rounding(
    bias: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "has_bfloat16", lambda: False)
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(40, 30, bias=bias).to(dtype)])
    inputs = torch.randn(3, 7, 40).to(dtype)
    with torch.inference_mode(), fast_products(model):
        found = [model[0](inputs) for _ in range(10)]
        assert (model[0].forward._packed is not None) == torch.backends.mkldnn.is_available()
    for each in found:
        assert each.dtype == dtype
        tolerance = {"rtol": 2.0**-8, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 0, "atol": 2e-6}
        torch.testing.assert_close(each.double(), exact(inputs, model[0]), **tolerance)


def test_packed_weights_have_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_PACKED_BYTES", 4 * (40 * 30 + 30 * 20))
    model = nn.ModuleList([nn.Linear(40, 30), nn.Linear(30, 40), nn.Linear(30, 20)])
    with torch.inference_mode(), fast_products(model):
        for _ in range(10):
            for layer in model:
                layer(torch.randn(2, layer.in_features))
        has_onednn = torch.backends.mkldnn.is_available()
        assert [layer.forward._packed is not None for layer in model] == [has_onednn, False, has_onednn]
