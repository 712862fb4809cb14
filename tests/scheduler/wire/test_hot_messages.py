"""Hand-written parsing agrees with the generated classes, which can read what is written by hand."""

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
from scheduler.core.task import Failure, LeaseName, Task, TaskState
from scheduler.wire import hot_messages, messages

names = st.text(max_size=150)
long_names = st.text(max_size=300)
uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
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


def through_classes(spec: task_pb2.TaskSpec) -> Task:
    task = messages.task_from_proto(spec, "caller")
    own = messages.seconds_of(spec.run_timeout)
    body = fleet_pb.Assignment(kind=spec.kind, priority=spec.priority or task_pb2.PRIORITY_NORMAL)
    body.run_timeout.FromNanoseconds(int(max(0.0, own or 60.0) * 1_000_000_000))
    if spec.HasField("payload"):
        body.payload.CopyFrom(spec.payload)
    task.body = body.SerializeToString()
    return task


@given(st.lists(specs(), max_size=4))
def test_tasks_are_read_as_the_generated_classes_read_them(tasks: list[task_pb2.TaskSpec]) -> None:
    data = pb.SubmitTasksRequest(tasks=tasks).SerializeToString()
    expected = [through_classes(spec) for spec in tasks]
    assert [fields(task) for task in hot_messages.tasks(data, "caller", 60.0)] == [fields(task) for task in expected]


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
            known[hot_messages.lease(task_id, lease_id, 1)] = (task_id, lease_id)
    ends, leases = hot_messages.results(request.SerializeToString(), known)
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
            hot_messages.tasks(noise, "caller", 60.0)
        return
    # Only the hand-written parser refuses groups, which none of our messages has.
    with suppress(DecodeError):
        assert len(hot_messages.tasks(noise, "caller", 60.0)) == expected


def test_unknown_fields_are_passed_over() -> None:
    later = b"\xa2\x06\x03abc" + b"\xa8\x06\x01" + b"\xad\x06\x00\x00\x00\x00" + b"\xb1\x06" + bytes(8)
    data = pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(task_id="t", kind="k")]).SerializeToString()
    assert [task.task_id for task in hot_messages.tasks(later + data + later, "caller", 60.0)] == ["t"]


def test_unknown_fields_inside_a_task_are_passed_over() -> None:
    for later in (b"\xa2\x06\x03abc", b"\x79" + b"\xff" * 8, b"\x7d" + b"\xff" * 4, b"\x78\x01"):
        spec = task_pb2.TaskSpec(task_id="t", kind="k").SerializeToString() + later
        data = b"\x0a" + bytes([len(spec)]) + spec
        assert [task.task_id for task in hot_messages.tasks(data, "caller", 60.0)] == ["t"]


def test_a_malformed_payload_never_gets_in() -> None:
    data = b"\x0a\x07\x12\x01k\x1a\x02\xff\xff"
    with pytest.raises(DecodeError):
        hot_messages.tasks(data, "caller", 60.0)


def test_too_many_tasks_are_refused_before_they_are_read() -> None:
    with pytest.raises(InvalidInput, match="has 10001 entries"):
        hot_messages.tasks(b"\x0a\x00" * 10_001, "caller", 60.0)


def test_kinds_and_submitters_share_their_strings() -> None:
    request = pb.SubmitTasksRequest(tasks=[task_pb2.TaskSpec(kind="some kind", submitter="some one") for _ in range(2)])
    first, second = hot_messages.tasks(request.SerializeToString(), "caller", 60.0)
    assert first.kind is second.kind
    assert first.submitter is second.submitter


def test_all_fields_of_a_request_of_a_stream_are_read() -> None:
    request = pb.SubmitTaskStreamRequest(tasks=[task_pb2.TaskSpec(task_id="t", kind="noop")], follow="me", patient=True)
    tasks, follow, patient = hot_messages.submission(request.SerializeToString(), "caller", 60.0)
    assert ([task.task_id for task in tasks], follow, patient) == (["t"], "me", True)
    assert hot_messages.submission(b"", "caller", 60.0) == ([], "", False)


@pytest.mark.parametrize("priority", [-1, -(1 << 14) - 1, -(1 << 31)])
def test_a_priority_below_all_is_the_caller_s_mistake(priority: int) -> None:
    # The generated class refuses this value; the wire does not.
    bits = priority + (1 << 64)
    varint = bytes((bits >> shift & 0x7F) | 0x80 for shift in range(0, 63, 7)) + bytes((bits >> 63,))
    spec = task_pb2.TaskSpec(kind="noop").SerializeToString()
    tag = bytes((task_pb2.TaskSpec.DESCRIPTOR.fields_by_name["priority"].number << 3,))
    task = spec + tag + varint
    request = b"\x0a" + bytes((len(task),)) + task
    with pytest.raises(InvalidInput) as error:
        hot_messages.tasks(request, "me", 1.0)
    assert error.value.reason == "UNKNOWN_PRIORITY"


@given(uint64, uint32, long_names)
def test_revoked_leases_parse(lease_id: int, attempt: int, task_id: str) -> None:
    data = b"".join(hot_messages.revoked([LeaseName(task_id, lease_id, attempt), LeaseName("other", 1, 2)]))
    message = fleet_pb.ConnectResponse.FromString(data)
    lease, other = message.revoked
    assert (lease.task_id, lease.lease_id, lease.attempt) == (task_id, lease_id, attempt)
    assert (other.task_id, other.lease_id, other.attempt) == ("other", 1, 2)


@given(
    long_names,
    st.integers(1, 5),
    st.floats(0.001, 1e7),
    st.one_of(st.none(), st.text(max_size=300)),
    uint64,
    long_names,
)
def test_assignments_parse(
    kind: str, priority: int, run_timeout: float, text: str | None, lease_id: int, task_id: str
) -> None:
    payload = None
    if text is not None:
        payload = task_pb2.Payload()
        payload.parameters["text"] = text
    body = hot_messages.assignment_body(
        kind, priority, run_timeout, None if payload is None else payload.SerializeToString()
    )
    assert hot_messages.payload_bytes(body) == (0 if payload is None else payload.ByteSize())
    task = Task(task_id, kind, body=body)
    task.lease_id, task.attempts = lease_id, 3
    message = fleet_pb.ConnectResponse.FromString(b"".join(hot_messages.assignments([task, task], {})))
    for assignment in message.assignments:
        assert (assignment.kind, assignment.priority) == (kind, priority)
        assert abs(messages.seconds_of(assignment.run_timeout) - run_timeout) < 1e-6
        assert (assignment.lease.task_id, assignment.lease.lease_id, assignment.lease.attempt) == (task_id, lease_id, 3)
        assert assignment.HasField("payload") == (payload is not None)
        assert payload is None or assignment.payload == payload
    assert len(message.assignments) == 2


def test_many_large_assignments_are_split() -> None:
    task = Task("t", "noop", body=hot_messages.assignment_body("noop", 3, 1.0, b"\x0a\x00" * 100_000))
    task.lease_id, task.attempts = 1, 1
    parts = hot_messages.assignments([task] * 10, {})
    assert len(parts) > 1
    assert len(fleet_pb.ConnectResponse.FromString(b"".join(parts)).assignments) == 10


@given(
    long_names,
    st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.QUARANTINED]),
    st.builds(Failure, long_names, long_names, st.booleans()),
    uint32,
    long_names,
    st.floats(0, 1e6),
    st.floats(0, 1e6),
)
def test_outcomes_parse(
    task_id: str, state: TaskState, failure: Failure, attempts: int, actor_id: str, queued: float, ran: float
) -> None:
    task = Task(task_id, "noop")
    task.state, task.attempts, task.actor_id, task.ran = state, attempts, actor_id, ran
    task.submit_time, task.lease_time, task.end_time = 0.0, queued, queued
    result = task_pb2.Payload()
    result.parameters["x"] = 1.0
    if state is TaskState.SUCCEEDED:
        task.result = result.SerializeToString()
    else:
        task.failure = failure
    (outcome,) = pb.WatchTasksResponse.FromString(b"".join(hot_messages.outcomes([task]))).outcomes
    assert list(pb.SubmitTaskStreamResponse.FromString(b"".join(hot_messages.followed([task]))).outcomes) == [outcome]
    assert (outcome.task_id, int(outcome.state), outcome.attempts) == (task_id, int(state), attempts)
    assert outcome.actor_id == actor_id
    assert abs(messages.seconds_of(outcome.queued) - queued) < 1e-6
    assert abs(messages.seconds_of(outcome.ran) - ran) < 1e-6
    if state is TaskState.SUCCEEDED:
        assert outcome.result == result
        assert not outcome.HasField("failure")
    else:
        assert (outcome.failure.reason, outcome.failure.message, outcome.failure.retryable) == failure
        assert not outcome.HasField("result")


def test_acknowledgements_parse_and_leases_are_known_by_their_bytes() -> None:
    task = Task("t", "noop")
    task.lease_id, task.attempts = 1 << 60, 2
    known: dict[bytes, tuple[str, int]] = {}
    hot_messages.assignments([task], known)
    assert known == {hot_messages.lease("t", 1 << 60, 2): ("t", 1 << 60)}
    message = fleet_pb.ConnectResponse.FromString(b"".join(hot_messages.acknowledged([*known, *known])))
    assert list(message.acknowledged) == [fleet_pb.Lease(task_id="t", lease_id=1 << 60, attempt=2)] * 2


def test_a_command_parses() -> None:
    message = fleet_pb.ConnectResponse.FromString(hot_messages.command(pb.ACTOR_COMMAND_DRAIN))
    assert message.command == pb.ACTOR_COMMAND_DRAIN
