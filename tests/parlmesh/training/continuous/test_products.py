"""Products of matrices, large and small: both ways give what torch's own operators give."""

from pathlib import Path

import pytest
import torch

from parlmesh.training.continuous import products


@pytest.fixture(params=["small", "large", "large without oneDNN"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a layer."""
    layer = None if "without" in request.param else products.one_dnn_layer(Path("no such file"))
    monkeypatch.setattr(products, "_LAYER", layer)
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


@pytest.mark.parametrize(("maker", "uses_it"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_one_dnn_is_used_where_mkl_is_slow(tmp_path: Path, maker: str, uses_it: bool) -> None:
    if "MKL-DNN" not in torch.__config__.show():
        pytest.skip("this build of torch has no oneDNN")
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {maker}\n")
    found = products.one_dnn_layer(tmp_path / "cpuinfo")
    assert (found is not None) == uses_it, "if torch renamed it, SAC is slower by a third, in silence"
