import pytest
from google.protobuf.descriptor import Descriptor

from parlmesh.errors import InvalidInput
from parlmesh.rpc.server.element_count import MOST_ELEMENTS, check_density, count_elements
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import federation_service_pb2, task_pb2, tensor_pb2
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.wire.fields import varint

CONNECT = "/parlmesh.v1.FleetService/Connect"
UPLOAD = "/parlmesh.v1.ExperienceService/UploadTrajectories"
UPDATES = "/parlmesh.v1.FederationService/SubmitUpdates"
# This import also registers its methods.
UPDATES_REQUEST: Descriptor = federation_service_pb2.SubmitUpdatesRequest.DESCRIPTOR
REQUEST: Descriptor = fleet_pb.ConnectRequest.DESCRIPTOR


def part(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def field(message: str, name: str) -> int:
    found = getattr(fleet_pb, message, None) or getattr(experience_pb, message)
    return int(found.DESCRIPTOR.fields_by_name[name].number)


BEAT = field("ConnectRequest", "heartbeat")


def test_fields_of_all_depths_and_numbers_of_packed_lists_are_counted() -> None:
    beat = fleet_pb.Heartbeat(leases=[fleet_pb.Lease(task_id="t", lease_id=1)] * 3, waiting_lease_ids=[1, 2, 3, 4])
    message = fleet_pb.ConnectRequest(heartbeat=beat, credits=5)
    # Two fields, one with three leases and a list of four; a lease counts once, whatever is in it.
    assert count_elements(message.SerializeToString(), REQUEST, 1000) == 2 + 3 + 1 + 4
    tasks = scheduler_pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(task_id="t", dependencies=["a", "b"])] * 3)
    assert count_elements(tasks.SerializeToString(), scheduler_pb.SubmitTasksRequest.DESCRIPTOR, 1000) == 3 + 3 * 3
    assert count_elements(part(1, b"") * 10, UPDATES_REQUEST, 1000) == 10


@pytest.mark.parametrize(
    ("method", "data"),
    [
        (CONNECT, part(field("ConnectRequest", "results"), b"") * (4 << 20)),
        (CONNECT, part(BEAT, part(field("Heartbeat", "leases"), b"") * (4 << 20))),
        (CONNECT, part(BEAT, part(field("Heartbeat", "waiting_lease_ids"), b"\1" * (8 << 20)))),
        (CONNECT, part(field("ConnectRequest", "hello"), part(field("Hello", "kinds"), b"") * (4 << 20))),
        (UPLOAD, part(1, part(field("Trajectory", "columns"), b"") * (4 << 20))),
        (UPDATES, part(1, b"") * (4 << 20)),
        (UPDATES, b"\x7a\x00" * (4 << 20)),
    ],
    ids=["results", "leases", "packed", "kinds", "columns", "updates", "unknown"],
)  # fmt: skip
def test_eight_mebibytes_of_nothing_are_refused_before_they_are_parsed(method: str, data: bytes) -> None:
    with pytest.raises(InvalidInput, match=f"has more than {MOST_ELEMENTS} elements; that is the limit") as error:
        check_density(data, method)
    assert error.value.reason == "MESSAGE_TOO_DENSE"


def test_large_honest_messages_pass_and_broken_ones_are_the_parser_s() -> None:
    tensor = tensor_pb2.Tensor(name="w", shape=[1 << 20], data=bytes(4 << 20))
    trajectory = experience_pb.Trajectory(run_id="r", columns=[tensor])
    data = experience_pb.UploadTrajectoriesRequest(trajectory=trajectory).SerializeToString()
    check_density(data, UPLOAD)
    check_density(data[:-100], UPLOAD)
    check_density(b"\xff" * (2 << 20), UPLOAD)
    check_density(b"\x0b" * (2 << 20), CONNECT)
    check_density(part(3, b"") * 1000, CONNECT)
