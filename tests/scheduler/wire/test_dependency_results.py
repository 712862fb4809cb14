"""Results travel with the assignment of the task that names them, and missing ones are named."""

from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import task_pb2
from parlmesh.wire import payload_to_proto
from scheduler.core.task import Task, TaskState
from scheduler.wire import hot_messages
from scheduler.wire.dependency_results import encoded_inputs


def finished(task_id: str, text: str = "x") -> Task:
    task = Task(task_id, "echo")
    task.state, task.result = TaskState.SUCCEEDED, payload_to_proto({"value": text}).SerializeToString()
    return task


def consumer(*dependencies: str, names: tuple[str, ...]) -> Task:
    payload = payload_to_proto({"args": [{"$result": name} for name in names]}).SerializeToString()
    return Task("c", "echo", hot_messages.assignment_body("echo", 3, 1.0, payload), dependencies=dependencies)


def inputs_of(task: Task, known: dict[str, Task], limit: int = 1 << 20) -> list[fleet_pb.TaskInput]:
    task.lease_id, task.attempts = 1, 1
    parts = hot_messages.assignments([task], {}, lambda one: encoded_inputs(one, known, limit))
    (assignment,) = fleet_pb.ConnectResponse.FromString(b"".join(parts)).assignments
    return list(assignment.inputs)


def test_only_results_that_the_parameters_name_are_sent() -> None:
    known = {name: finished(name) for name in ("one", "two", "other")}
    sent = inputs_of(consumer("one", "other", "two", names=("one", "two")), known)
    assert [given.task_id for given in sent] == ["one", "two"]
    assert sent[0].result == task_pb2.Payload.FromString(known["one"].result)
    assert inputs_of(consumer("one", names=()), known) == []


def test_what_is_forgotten_or_does_not_fit_is_named() -> None:
    known = {"small": finished("small"), "large": finished("large", "x" * 2000)}
    gone, large, small = inputs_of(consumer("gone", "large", "small", names=("gone", "large", "small")), known, 1500)
    assert gone.missing == 'the result of task "gone" is no longer kept (the scheduler\'s retention)'
    assert 'the result of task "large" has 20' in large.missing
    assert (small.missing, small.HasField("result")) == ("", True)
