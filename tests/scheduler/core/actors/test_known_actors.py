import pytest

from parlmesh.errors import InvalidInput
from scheduler.core.actors.known_actors import MOST_KINDS, MOST_OWN_KINDS
from scheduler.core.actors.placement import ActorCommand
from scheduler.core.task import Task
from tests.scheduler.conftest import Harness


def test_kinds_that_actors_make_up_are_forgotten_and_those_of_actors_that_are_there_go_on() -> None:
    harness = Harness()
    honest = harness.connect("honest", kinds=("noop",))
    for number in range(60):
        kinds = tuple(f"k{number}-{one}" for one in range(256))
        liar = harness.connect(f"liar-{number}", node_id=f"node-{number}", kinds=kinds)
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


def test_the_kinds_that_one_node_makes_up_push_out_its_own_alone() -> None:
    harness = Harness()
    harness.disconnect(harness.connect("liar", node_id="liar", kinds=("render",)))
    harness.disconnect(harness.connect("honest", node_id="honest", kinds=("noop", "render")))
    for number in range(20):
        kinds = tuple(f"k{number}-{one}" for one in range(256))
        harness.disconnect(harness.connect("liar", node_id="liar", incarnation=number + 2, kinds=kinds))
    assert len(harness.core.life.roster.kinds) == MOST_OWN_KINDS + 2
    harness.submit(Task("t", "noop"), Task("u", "render"))


def test_of_many_lost_actors_of_one_node_the_first_to_be_lost_are_forgotten() -> None:
    harness = Harness(retention={"actors_per_node": 3}, leases={"reconnect_seconds": 2.0})
    harness.connect("there", node_id="liar")
    harness.connect("paused", node_id="liar")
    harness.command(ActorCommand.PAUSE, "paused")
    harness.disconnect(2)
    harness.disconnect(harness.connect("other", node_id="other"))
    for number in range(20):
        harness.disconnect(harness.connect(f"liar-{number}", node_id="liar"))
        harness.pass_time(0.1, alive=[1])
    harness.submit(Task("t", "noop"), Task("u", "noop"))
    assert len(harness.core.life.fleet.actors["there"].leases) == 1
    # An absent actor with a lease is kept until the lease ends.
    harness.disconnect(harness.connect("holder", node_id="liar"))
    harness.pass_time(1.0, alive=[1])
    lost = ["liar-17", "liar-18", "liar-19"]
    assert list(harness.core.life.fleet.actors) == ["there", "paused", "other", *lost, "holder"]
    harness.pass_time(3.0, alive=[1])
    assert list(harness.core.life.fleet.actors) == ["there", "paused", "other", *lost[1:], "holder"]


def test_kinds_and_labels_of_one_actor_have_a_size() -> None:
    harness = Harness()
    kinds = tuple(f"{number:03}" + "k" * 97 for number in range(120))
    harness.connect("a", kinds=kinds, labels=(("x" * 100, "y" * 100),) * 20)
    with pytest.raises(InvalidInput, match=r'kinds and labels of actor "b" has 16600 bytes') as caught:
        harness.connect("b", kinds=kinds, labels=(("x" * 100, "y" * 100),) * 23)
    assert caught.value.reason == "HELLO_TOO_LARGE"
    assert "b" not in harness.core.life.fleet.actors
