"""Messages and core types say the same."""

import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import task_pb2
from scheduler.core.task import ANYWHERE, NO_RESULT, Failure, Placement, Priority, Task, TaskState
from scheduler.wire import messages


def full_spec() -> task_pb2.TaskSpec:
    spec = task_pb2.TaskSpec(
        task_id="t",
        kind="echo",
        priority=task_pb2.PRIORITY_HIGH,
        dependencies=["a", "b"],
        placement=task_pb2.Placement(node_id="node-1", labels={"gpu": "yes"}),
        queue_timeout=Duration(seconds=5),
        run_timeout=Duration(nanos=500_000_000),
        max_attempts=7,
        submitter="me",
    )
    spec.payload.parameters["x"] = 1.5
    return spec


def test_a_spec_goes_through_the_core_unchanged() -> None:
    spec = full_spec()
    task = messages.task_from_proto(spec, "caller", 60.0)
    task.submit_time = 0.0
    assert messages.task_to_proto(task, 0.0, payload=True).spec == spec
    assert task.placement == Placement("node-1", frozenset({("gpu", "yes")}))


def test_what_a_spec_leaves_out_has_defaults() -> None:
    task = messages.task_from_proto(task_pb2.TaskSpec(kind="noop"), "caller", 60.0)
    assert (task.priority, task.submitter, task.placement) == (Priority.NORMAL, "caller", ANYWHERE)
    assert (task.queue_timeout, task.run_timeout, task.dependencies, task.max_attempts) == (None, None, (), 0)
    assert messages.seconds_of(fleet_pb.Assignment.FromString(task.body).run_timeout) == 60.0


def test_lists_leave_payloads_and_results_out() -> None:
    task = messages.task_from_proto(full_spec(), "caller", 60.0)
    task.submit_time = task.lease_time = task.end_time = 0.0
    task.state, task.result = TaskState.SUCCEEDED, task_pb2.Payload().SerializeToString()
    message = messages.task_to_proto(task, 0.0, payload=False)
    assert not message.spec.HasField("payload")
    assert not message.outcome.HasField("result")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (fleet_pb.TaskResult(result=task_pb2.Payload()), None),
        (
            fleet_pb.TaskResult(failure=task_pb2.Failure(reason="R", message="m", retryable=True)),
            Failure("R", "m", True),
        ),
        (fleet_pb.TaskResult(failure=task_pb2.Failure(message="m")), Failure("HANDLER_ERROR", "m", False)),
        (fleet_pb.TaskResult(), NO_RESULT),
    ],
)
def test_results_are_read(result: fleet_pb.TaskResult, expected: Failure | None) -> None:
    result.lease.CopyFrom(fleet_pb.Lease(task_id="t", lease_id=9, attempt=2))
    result.ran.FromMilliseconds(250)
    assert messages.result_from_proto(result) == ("t", 9, b"", expected, 0.25)


def test_results_that_come_with_a_hello_count_as_held() -> None:
    request = fleet_pb.ConnectRequest(
        hello=fleet_pb.Hello(actor_id="a", leases=[fleet_pb.Lease(task_id="runs", lease_id=1)]),
        results=[fleet_pb.TaskResult(lease=fleet_pb.Lease(task_id="done", lease_id=2))],
    )
    assert [lease.task_id for lease in messages.hello_from_proto(request, 1).leases] == ["runs", "done"]


@pytest.mark.parametrize("seconds", [float(1 << 63), float("inf"), -5.0])
def test_a_task_of_an_older_journal_can_be_shown_whatever_its_timeouts(seconds: float) -> None:
    task = Task("t", "noop", run_timeout=seconds, queue_timeout=seconds)
    task.submit_time = 0.0
    shown = messages.task_to_proto(task, 0.0, payload=False).spec
    assert 0 <= shown.run_timeout.seconds == shown.queue_timeout.seconds <= 100 * 365 * 86400


def test_the_reason_of_a_failure_is_one_word_in_one_line() -> None:
    failure = task_pb2.Failure(reason="BROKEN\nerror: all is lost", message="m\nn")
    end = messages.result_from_proto(fleet_pb.TaskResult(failure=failure))
    assert end[3] == Failure("BROKEN\\nerror: all is lost", "m\nn", False)
