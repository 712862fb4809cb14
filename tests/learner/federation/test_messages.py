import math
from collections import deque
from typing import Any, cast

import pytest

from learner.federation.messages import about_from_proto, rounds_to_proto
from learner.federation.rules.records import RoundRecord, UpdateRecord
from parlmesh.errors import InvalidInput
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.v1 import tensor_pb2


def test_a_page_of_large_rounds_ends_before_the_message_is_too_large():
    history = deque(RoundRecord(number, 1, 0.0) for number in range(1, 41))
    for record in history:
        record.add([UpdateRecord("n" * 128, refusal="NOT_FINITE", message="m" * 200) for _ in range(2_000)])
    found, token, pages = [], "", 0
    while True:
        answer = rounds_to_proto(history, 1_000, token)
        assert answer.ByteSize() < 5 << 20
        found += [each.number for each in answer.rounds]
        token, pages = answer.next_page_token, pages + 1
        if not token:
            break
    assert found == list(range(40, 0, -1))
    assert pages > 3


def test_the_largest_round_that_can_be_fits_in_a_message():
    record = RoundRecord(1, 1, 0.0)
    record.add([UpdateRecord("n" * 128, samples=1 << 53, norm=1e300, refusal="OUTLIER", message="m" * 200)] * 30_000)
    (answer,) = rounds_to_proto([record], 0, "").rounds
    assert answer.ByteSize() < 5 << 20
    assert answer.unlisted_updates == 20_000


@pytest.mark.parametrize("token", ["²", "-1", "x", "9" * 5_000])
def test_a_page_token_that_nobody_gave_is_refused(token):
    with pytest.raises(InvalidInput, match="page_token must be"):
        rounds_to_proto([], 0, token)


def test_of_what_a_node_says_of_its_update_only_numbers_that_can_be_averaged_are_kept():
    numbers = {"good": 0.5, "inf": math.inf, "nan": math.nan, "huge": 1.5e308}
    said: dict[str, Any] = {**numbers, "text": "x", "list": [1], "none": None}
    header = pb.UpdateHeader()
    header.metrics.update(said)
    assert about_from_proto(header).metrics == {"good": 0.5}


def test_a_type_that_nobody_knows_is_refused():
    header = pb.UpdateHeader(tensors=[tensor_pb2.Tensor(name="w", shape=[1])])
    raw = header.SerializeToString()
    unknown = pb.UpdateHeader.FromString(raw)
    unknown.tensors[0].dtype = cast("tensor_pb2.DataType.ValueType", 999)
    with pytest.raises(InvalidInput, match="unknown type 999"):
        about_from_proto(unknown)
