"""Messages and core types carry the same content."""

import pytest

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from scheduler.core.task import ANYWHERE, NO_RESULT, Failure, Priority
from scheduler.wire import hot_messages, messages


def test_what_a_spec_leaves_out_has_defaults() -> None:
    spec = task_pb2.TaskSpec(kind="noop")
    task = messages.task_from_proto(spec, "caller")
    assert (task.priority, task.submitter, task.placement) == (Priority.NORMAL, "caller", ANYWHERE)
    assert (task.queue_timeout, task.run_timeout, task.dependencies, task.max_attempts) == (None, None, (), 0)
    (task,) = hot_messages.tasks(pb.SubmitTasksRequest(tasks=[spec]).SerializeToString(), "caller", 60.0)
    assert messages.seconds_of(fleet_pb.Assignment.FromString(task.body).run_timeout) == 60.0


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


def test_the_reason_of_a_failure_is_one_word_in_one_line() -> None:
    failure = task_pb2.Failure(reason="BROKEN\nerror: all is lost", message="m\nn")
    end = messages.result_from_proto(fleet_pb.TaskResult(failure=failure))
    assert end[3] == Failure("BROKEN\\nerror: all is lost", "m\nn", False)
