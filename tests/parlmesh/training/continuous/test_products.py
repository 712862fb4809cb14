"""Products of matrices, large and small: both ways give what torch's own operators give."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from parlmesh.policies.numpy_networks import parameter_count
from parlmesh.training.continuous import products
from parlmesh.training.continuous.perceptron import Perceptron

SPECIAL = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-42, 3e38, -3e38]
"""Numbers that a product of matrices or an activation may treat in its own way."""


@pytest.fixture
def one_dnn(tmp_path: Path) -> Callable[..., Tensor] | None:
    """oneDNN's layer, whatever processor this is; None in builds of torch that do not have it."""
    processor = tmp_path / "processor"
    processor.write_text("vendor_id\t: AuthenticAMD\n")
    return products.one_dnn_layer([processor])


@pytest.fixture(params=["small", "large", "large without oneDNN"])
def sizes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, one_dnn: Callable[..., Tensor] | None
) -> tuple[int, int, int]:
    """Rows, inputs and outputs of a layer."""
    layer = None if "without" in request.param else one_dnn
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


@pytest.mark.parametrize("place", ["inputs", "weight", "bias"])
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_layer_has_torchs_answer_to_every_number(
    sizes: tuple[int, int, int], activation: str, special: float, place: str
) -> None:
    rows, inputs, outputs = sizes
    given = {"inputs": torch.randn(rows, inputs), "weight": torch.randn(inputs, outputs), "bias": torch.randn(outputs)}
    given[place].view(-1)[::7] = special
    room = torch.empty(rows, outputs)
    found = products.layer(given["inputs"], given["weight"], given["bias"], activation, room)
    expected = getattr(torch, activation)(torch.addmm(given["bias"], given["inputs"], given["weight"]))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("special", SPECIAL)
def test_a_product_has_torchs_answer_to_every_number(sizes: tuple[int, int, int], special: float) -> None:
    rows, inputs, outputs = sizes
    left, right = torch.randn(rows, inputs), torch.randn(inputs, outputs)
    left.view(-1)[::7] = special
    found = products.product(left, right, torch.empty(rows, outputs))
    torch.testing.assert_close(found, left @ right, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_network_whose_weights_are_not_numbers_shows_it(
    monkeypatch: pytest.MonkeyPatch, one_dnn: Callable[..., Tensor] | None, activation: str
) -> None:
    monkeypatch.setattr(products, "_LAYER", one_dnn)
    sizes = (96, 128, 128, 4)
    parameters = torch.randn(parameter_count(sizes)) / 10
    network = Perceptron(sizes, activation, parameters, torch.zeros(len(parameters)))
    network.layers[0][0][:] = torch.nan
    assert network.forward(torch.randn(256, 96)).isnan().all()


DESCRIPTIONS = [
    pytest.param(["vendor_id\t: AuthenticAMD"], True, id="AMD"),
    pytest.param(["vendor_id\t: GenuineIntel"], False, id="Intel"),
    pytest.param([None, "cpu:type:x86,ven0002fam001Amod0002:feature:,0000"], True, id="AMD where /proc is hidden"),
    pytest.param([None, "cpu:type:x86,ven0000fam0006mod008F:feature:,0000"], False, id="Intel where /proc is hidden"),
    pytest.param([None, None], False, id="nothing tells"),
]


@pytest.mark.parametrize(("descriptions", "uses_it"), DESCRIPTIONS)
def test_one_dnn_is_used_where_mkl_is_slow(tmp_path: Path, descriptions: list[str | None], uses_it: bool) -> None:
    if "MKL-DNN" not in torch.__config__.show():
        pytest.skip("this build of torch has no oneDNN")
    files = [tmp_path / str(number) for number in range(len(descriptions))]
    for file, description in zip(files, descriptions, strict=True):
        if description is not None:
            file.write_text(f"processor\t: 0\n{description}\n")
    found = products.one_dnn_layer(files)
    assert (found is not None) == uses_it, "if torch renamed it, SAC is slower by a third, in silence"
