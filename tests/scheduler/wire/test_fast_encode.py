"""What is written by hand is what the generated classes read."""

from hypothesis import given
from hypothesis import strategies as st

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.core.task import Failure, LeaseName, Task, TaskState
from scheduler.wire import fast_encode, messages

names = st.text(max_size=300)
uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)


@given(uint64, uint32, names)
def test_revoked_leases_parse(lease_id: int, attempt: int, task_id: str) -> None:
    data = b"".join(fast_encode.revoked([LeaseName(task_id, lease_id, attempt), LeaseName("other", 1, 2)]))
    message = fleet_pb.ConnectResponse.FromString(data)
    lease, other = message.revoked
    assert (lease.task_id, lease.lease_id, lease.attempt) == (task_id, lease_id, attempt)
    assert (other.task_id, other.lease_id, other.attempt) == ("other", 1, 2)


@given(names, st.integers(1, 5), st.floats(0.001, 1e7), st.one_of(st.none(), st.text(max_size=300)), uint64, names)
def test_assignments_parse(
    kind: str, priority: int, run_timeout: float, text: str | None, lease_id: int, task_id: str
) -> None:
    payload = None
    if text is not None:
        payload = task_pb2.Payload()
        payload.parameters["text"] = text
    body = fast_encode.assignment_body(
        kind, priority, run_timeout, None if payload is None else payload.SerializeToString()
    )
    task = Task(task_id, kind, body=body)
    task.lease_id, task.attempts = lease_id, 3
    message = fleet_pb.ConnectResponse.FromString(b"".join(fast_encode.assignments([task, task], {})))
    for assignment in message.assignments:
        assert (assignment.kind, assignment.priority) == (kind, priority)
        assert abs(messages.seconds_of(assignment.run_timeout) - run_timeout) < 1e-6
        assert (assignment.lease.task_id, assignment.lease.lease_id, assignment.lease.attempt) == (task_id, lease_id, 3)
        assert assignment.HasField("payload") == (payload is not None)
        assert payload is None or assignment.payload == payload
    assert len(message.assignments) == 2


def test_many_large_assignments_are_split() -> None:
    task = Task("t", "noop", body=fast_encode.assignment_body("noop", 3, 1.0, b"\x0a\x00" * 100_000))
    task.lease_id, task.attempts = 1, 1
    parts = fast_encode.assignments([task] * 10, {})
    assert len(parts) > 1
    assert len(fleet_pb.ConnectResponse.FromString(b"".join(parts)).assignments) == 10


@given(
    names,
    st.sampled_from([TaskState.SUCCEEDED, TaskState.FAILED, TaskState.CANCELLED, TaskState.QUARANTINED]),
    st.builds(Failure, names, names, st.booleans()),
    uint32,
    names,
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
    (outcome,) = pb.WatchTasksResponse.FromString(b"".join(fast_encode.outcomes([task]))).outcomes
    assert list(pb.SubmitTaskStreamResponse.FromString(b"".join(fast_encode.followed([task]))).outcomes) == [outcome]
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
    fast_encode.assignments([task], known)
    assert known == {fast_encode.lease("t", 1 << 60, 2): ("t", 1 << 60)}
    message = fleet_pb.ConnectResponse.FromString(b"".join(fast_encode.acknowledged([*known, *known])))
    assert list(message.acknowledged) == [fleet_pb.Lease(task_id="t", lease_id=1 << 60, attempt=2)] * 2


def test_a_command_parses() -> None:
    message = fleet_pb.ConnectResponse.FromString(fast_encode.command(pb.ACTOR_COMMAND_DRAIN))
    assert message.command == pb.ACTOR_COMMAND_DRAIN
