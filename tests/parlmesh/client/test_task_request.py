"""What a request that comes from an iterator copies."""

from typing import Any

import numpy as np
import pytest

from parlmesh.blobs import BlobFolder, Reference, name_of
from parlmesh.client import TaskRequest
from parlmesh.client.task_request import owned, with_own_arrays
from parlmesh.types import Array


def unchanged() -> list[Array]:
    """Arrays whose elements nobody can change."""
    text = np.frombuffer(b"some bytes", np.uint8)
    return [text, text[2:4]]


def changeable() -> list[Array]:
    """Arrays whose elements somebody can change, by themselves or by what they show."""
    shown = np.arange(4)
    shown.flags.writeable = False
    hidden = np.arange(4)
    view = hidden[1:]
    view.flags.writeable = False
    return [np.arange(4), np.arange(9).reshape(3, 3).T, shown, view, np.frombuffer(bytearray(b"some"), np.uint8)]


@pytest.mark.parametrize("array", unchanged())
def test_what_cannot_change_is_not_copied(array: Array) -> None:
    request = TaskRequest("noop", {}, {"x": array})
    assert owned(request) is request


def test_a_mapped_array_and_a_reference_are_not_copied(tmp_path: Any) -> None:
    data = np.arange(10.0)
    name = name_of("c", "1", data.tobytes())
    folder = BlobFolder(tmp_path)
    folder.write(name, data.view(np.uint8).data)
    tensors: dict[str, Array | Reference] = {
        "x": folder.read(name, data.nbytes).view(float),
        "y": Reference(name, data.dtype, data.shape),
    }
    request = TaskRequest("noop", {}, tensors)
    assert with_own_arrays(request) is request


@pytest.mark.parametrize("array", changeable())
def test_what_may_change_is_copied(array: Array) -> None:
    copy = owned(TaskRequest("noop", {}, {"x": array})).tensors["x"]
    assert isinstance(copy, np.ndarray)
    assert not np.shares_memory(copy, array)
    assert (copy.dtype, copy.tolist()) == (array.dtype, array.tolist())


def test_parameters_are_copied_to_their_depth_and_all_else_stays() -> None:
    parameters: dict[str, Any] = {"a": [{"b": 1}], "c": "text"}
    request = TaskRequest("noop", parameters, task_id="one", dependencies=("two",), run_timeout=5.0)
    copy = owned(request)
    parameters["a"][0]["b"] = 2
    assert copy == TaskRequest(
        "noop", {"a": [{"b": 1}], "c": "text"}, task_id="one", dependencies=("two",), run_timeout=5.0
    )
