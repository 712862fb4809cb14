"""Reading by hand gives what reading through the generated classes gives."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.errors import InvalidInput
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.core.task import Task
from scheduler.wire import fast_decode, fast_encode, messages

names = st.text(max_size=150)
durations = st.builds(Duration, seconds=st.integers(-5, 10**6), nanos=st.integers(0, 999_999_999))


@st.composite
def payloads(draw: Callable[..., object]) -> task_pb2.Payload:
    payload = task_pb2.Payload()
    if draw(st.booleans()):
        payload.parameters["text"] = str(draw(names))
    if draw(st.booleans()):
        payload.tensors.add(name="x", data=bytes(str(draw(names)), "utf-8"))
    return payload


@st.composite
def specs(draw: Callable[..., object]) -> task_pb2.TaskSpec:
    """Any field may be set or not."""
    choices = {
        "task_id": names,
        "kind": names,
        "payload": payloads(),
        "priority": st.integers(0, 200),
        "dependencies": st.lists(names, max_size=3),
        "placement": st.builds(task_pb2.Placement, node_id=names, labels=st.dictionaries(names, names, max_size=2)),
        "queue_timeout": durations,
        "run_timeout": durations,
        "max_attempts": st.integers(0, 2**32 - 1),
        "submitter": names,
    }
    usual = ("task_id", "kind", "payload", "submitter", "priority")
    wanted = [name for name in choices if draw(st.integers(0, 9)) < (8 if name in usual else 1)]  # type: ignore[operator]
    return task_pb2.TaskSpec(**{name: draw(choices[name]) for name in wanted})  # type: ignore[arg-type]


def fields(task: Task) -> tuple[object, ...]:
    body = fleet_pb.Assignment.FromString(task.body)
    names = ("task_id", "kind", "priority", "dependencies", "placement", "queue_timeout", "run_timeout", "max_attempts")
    return (*(getattr(task, name) for name in names), task.submitter, body.SerializeToString(deterministic=True))


@given(st.lists(specs(), max_size=4))
def test_tasks_are_read_as_the_generated_classes_read_them(tasks: list[task_pb2.TaskSpec]) -> None:
    data = pb.SubmitTasksRequest(tasks=tasks).SerializeToString()
    expected = [messages.task_from_proto(spec, "caller", 60.0) for spec in tasks]
    assert [fields(task) for task in fast_decode.tasks(data, "caller", 60.0)] == [fields(task) for task in expected]


@given(
    st.lists(
        st.tuples(names, st.integers(0, 2**64 - 1), st.booleans(), st.booleans(), payloads(), durations), max_size=4
    ),
    st.integers(0, 1000),
)
def test_results_are_read_as_the_generated_classes_read_them(
    drawn: list[tuple[str, int, bool, bool, task_pb2.Payload, Duration]], credits: int
) -> None:
    known = {}
    request = fleet_pb.ConnectRequest(credits=credits, leaving=True, heartbeat=fleet_pb.Heartbeat(policy_version=7))
    for task_id, lease_id, succeeded, sent_here, payload, ran in drawn:
        result = request.results.add(lease=fleet_pb.Lease(task_id=task_id, lease_id=lease_id, attempt=1), ran=ran)
        if succeeded:
            result.result.CopyFrom(payload)
        else:
            result.failure.reason = "R"
        if sent_here:
            known[fast_encode.lease(task_id, lease_id, 1)] = (task_id, lease_id)
    ends, leases = fast_decode.results(request.SerializeToString(), known)
    for end, result in zip(ends, request.results, strict=True):
        task_id, lease_id, payload_bytes, failure, ran_seconds = messages.result_from_proto(result)
        assert (end[0], end[1], end[3]) == (task_id, lease_id, failure)
        assert task_pb2.Payload.FromString(end[2]) == task_pb2.Payload.FromString(payload_bytes)
        assert end[4] == pytest.approx(ran_seconds)
    assert [fleet_pb.Lease.FromString(lease) for lease in leases] == [result.lease for result in request.results]


@given(st.binary(max_size=60))
def test_noise_is_refused_as_protobuf_refuses_it(noise: bytes) -> None:
    try:
        expected = len(pb.SubmitTasksRequest.FromString(noise).tasks)
    except DecodeError:
        with pytest.raises(DecodeError):
            fast_decode.tasks(noise, "caller", 60.0)
        return
    # Only groups, which no message of ours has, are refused by hand alone.
    with suppress(DecodeError):
        assert len(fast_decode.tasks(noise, "caller", 60.0)) == expected


def test_unknown_fields_are_passed_over() -> None:
    later = b"\xa2\x06\x03abc" + b"\xa8\x06\x01" + b"\xad\x06\x00\x00\x00\x00" + b"\xb1\x06" + bytes(8)
    data = pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(task_id="t", kind="k")]).SerializeToString()
    assert [task.task_id for task in fast_decode.tasks(later + data + later, "caller", 60.0)] == ["t"]


def test_unknown_fields_inside_a_task_are_passed_over() -> None:
    for later in (b"\xa2\x06\x03abc", b"\x79" + b"\xff" * 8, b"\x7d" + b"\xff" * 4, b"\x78\x01"):
        spec = task_pb2.TaskSpec(task_id="t", kind="k").SerializeToString() + later
        data = b"\x0a" + bytes([len(spec)]) + spec
        assert [task.task_id for task in fast_decode.tasks(data, "caller", 60.0)] == ["t"]


def test_a_malformed_payload_never_gets_in() -> None:
    data = b"\x0a\x07\x12\x01k\x1a\x02\xff\xff"
    with pytest.raises(DecodeError):
        fast_decode.tasks(data, "caller", 60.0)


def test_too_many_tasks_are_refused_before_they_are_read() -> None:
    with pytest.raises(InvalidInput, match="has 10001 entries"):
        fast_decode.tasks(b"\x0a\x00" * 10_001, "caller", 60.0)


def test_kinds_and_submitters_share_their_strings() -> None:
    request = pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(kind="some kind", submitter="some one") for _ in range(2)])
    first, second = fast_decode.tasks(request.SerializeToString(), "caller", 60.0)
    assert first.kind is second.kind
    assert first.submitter is second.submitter


def test_what_else_a_request_of_a_stream_says_is_read() -> None:
    request = pb.SubmitTaskStreamRequest(tasks=[task_pb2.TaskSpec(task_id="t", kind="noop")], follow="me", patient=True)
    tasks, follow, patient = fast_decode.submission(request.SerializeToString(), "caller", 60.0)
    assert ([task.task_id for task in tasks], follow, patient) == (["t"], "me", True)
    assert fast_decode.submission(b"", "caller", 60.0) == ([], "", False)


@pytest.mark.parametrize("priority", [-1, -(1 << 14) - 1, -(1 << 31)])
def test_a_priority_below_all_is_the_caller_s_mistake(priority: int) -> None:
    # The contract's own class refuses to be told of it; the wire does not.
    bits = priority + (1 << 64)
    varint = bytes((bits >> shift & 0x7F) | 0x80 for shift in range(0, 63, 7)) + bytes((bits >> 63,))
    spec = task_pb2.TaskSpec(kind="noop").SerializeToString()
    tag = bytes((task_pb2.TaskSpec.DESCRIPTOR.fields_by_name["priority"].number << 3,))
    task = spec + tag + varint
    request = b"\x0a" + bytes((len(task),)) + task
    with pytest.raises(InvalidInput) as error:
        fast_decode.tasks(request, "me", 1.0)
    assert error.value.reason == "UNKNOWN_PRIORITY"
