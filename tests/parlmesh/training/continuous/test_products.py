"""Products of matrices, large and small: both ways give what torch's own operators give."""

import pytest
import torch

from parlmesh.training.continuous import products


@pytest.fixture(params=["small", "large", "large without oneDNN"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a layer."""
    if "without" in request.param:
        monkeypatch.setattr(products, "_LAYER", None)
    return (8, 3, 5) if request.param == "small" else (256, 96, 128)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_layer_is_its_weights_bias_and_activation(sizes: tuple[int, int, int], activation: str) -> None:
    rows, inputs, outputs = sizes
    features, weight, bias = torch.randn(rows, inputs), torch.randn(inputs, outputs), torch.randn(outputs)
    found = products.layer(features, weight, bias, activation, torch.empty(rows, outputs))
    torch.testing.assert_close(found, getattr(torch, activation)(features @ weight + bias), atol=1e-4, rtol=1e-4)


def test_a_product_takes_matrices_in_either_order_of_memory(sizes: tuple[int, int, int]) -> None:
    rows, inputs, outputs = sizes
    left, right = torch.randn(rows, inputs), torch.randn(rows, outputs)
    found = products.product(left.t(), right, torch.empty(inputs, outputs))
    torch.testing.assert_close(found, left.t() @ right, atol=1e-4, rtol=1e-4)
    weight = torch.randn(outputs, inputs)
    found = products.product(left, weight.t(), torch.empty(rows, outputs))
    torch.testing.assert_close(found, left @ weight.t(), atol=1e-4, rtol=1e-4)


def test_this_torch_has_onednns_layer() -> None:
    if "MKL-DNN" not in torch.__config__.show():
        pytest.skip("this build of torch has no oneDNN")
    assert products._LAYER is not None, "torch renamed it: SAC would be slower by a third, in silence"
