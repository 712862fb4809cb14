from scheduler.core.roster import MOST_KINDS
from scheduler.core.task import Task
from tests.scheduler.conftest import Harness


def test_kinds_that_actors_make_up_are_forgotten_and_those_of_actors_that_are_there_go_on() -> None:
    harness = Harness()
    honest = harness.connect("honest", kinds=("noop",))
    for number in range(60):
        liar = harness.connect("liar", incarnation=number + 1, kinds=tuple(f"k{number}-{one}" for one in range(256)))
        assert len(harness.core.life.roster.kinds) <= MOST_KINDS
        harness.disconnect(liar)
    assert len(harness.core.life.roster.kinds) == MOST_KINDS
    harness.submit(Task("t", "noop"))
    assert [task.task_id for task in harness.take(honest)] == ["t"]


def test_kinds_that_nobody_announced_for_long_are_known_no_longer() -> None:
    harness = Harness(retention={"kind_seconds": 60.0})
    honest = harness.connect("honest", kinds=("noop",))
    gone = harness.connect("gone", kinds=tuple(f"k{number}" for number in range(200)))
    harness.disconnect(gone)
    assert len(harness.core.life.roster.kinds) == 201
    harness.pass_time(200.0, alive=[honest])
    assert set(harness.core.life.roster.kinds) == {"noop"}
