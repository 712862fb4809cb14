"""A finished task from a journal is decoded on first use."""

import pytest

from scheduler.core.task import Placement, Task, TaskState
from scheduler.journal.compaction import Compactor
from scheduler.journal.stored_task import StoredTask
from tests.scheduler.conftest import Harness


def stored(harness: Harness) -> tuple[StoredTask, Task]:
    actor = harness.connect("a", node_id="n")
    harness.submit(Task("t", "noop", body=b"body", placement=Placement("n"), max_attempts=7, submitter="me"))
    harness.now += 2.0
    harness.finish(actor, result=b"result", ran=1.5)
    compactor = Compactor()
    compactor.read_all(batch for batch, _ in harness.records)
    ((number, trail),) = compactor.finished.items()
    return StoredTask(number, trail.submitted, trail.finished, lambda wall_time: wall_time), harness.core.task("t")


def test_it_knows_its_end_unopened(harness: Harness) -> None:
    task, original = stored(harness)
    assert (task.task_id, task.state, task.final, task.end_time) == ("t", TaskState.SUCCEEDED, True, original.end_time)
    assert task._records


def test_everything_else_is_there_when_asked_for(harness: Harness) -> None:
    task, original = stored(harness)
    for name in ("result", "body", "kind", "placement", "max_attempts", "submitter", "attempts", "actor_id", "ran"):
        assert getattr(task, name) == getattr(original, name)
    assert not task._records
    assert task.queued_seconds == pytest.approx(original.queued_seconds)


def test_what_no_task_has_is_an_attribute_error(harness: Harness) -> None:
    task, _ = stored(harness)
    for _ in range(2):
        with pytest.raises(AttributeError, match="no_such_thing"):
            _ = task.no_such_thing
