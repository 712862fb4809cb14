import numpy as np
import pytest

from actor.federation.model_downloads import ArrivingModel
from parlmesh.digests import fast_digest
from parlmesh.errors import ResourceExhausted
from parlmesh.federation.model_file import model_header
from parlmesh.federation.schema import ModelSchema
from parlmesh.v1 import federation_service_pb2 as pb

WEIGHT = np.arange(50, dtype=np.float32)
FILE = model_header(ModelSchema.of({"weight": WEIGHT}), {}) + WEIGHT.tobytes()
HEADER = pb.ModelHeader(federation_id="f", version=3, size_bytes=len(FILE), checksum=fast_digest(FILE))


def arrive(data: bytes) -> ArrivingModel:
    model = ArrivingModel(HEADER, limit=1 << 20)
    for start in range(0, len(data), 100):
        assert model.take(memoryview(data[start : start + 100]))
    return model


def test_chunks_become_the_model_which_nobody_can_write_to() -> None:
    found = arrive(FILE).whole()
    assert found is not None
    assert np.array_equal(found.tensors["weight"], WEIGHT)
    assert not found.tensors["weight"].flags.writeable


def test_a_model_that_is_cut_short_or_changed_on_its_way_is_none() -> None:
    assert arrive(FILE[:-4]).whole() is None
    assert arrive(FILE[:-1] + b"\xff").whole() is None


def test_what_there_is_no_room_for_is_refused() -> None:
    assert not arrive(FILE).take(memoryview(b"x"))
    with pytest.raises(ResourceExhausted, match=r"limits\.policy_bytes"):
        ArrivingModel(HEADER, limit=10)
