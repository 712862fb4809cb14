from hypothesis import given
from hypothesis import strategies as st

from learner.sources.actor_listing import RolloutActor, RolloutActors
from learner.sources.rollout_failures import Failures
from parlmesh.rpc import open_channel


def test_a_run_gives_up_after_enough_failures_in_a_row_over_some_time():
    failures = Failures(3)
    for now in (0.0, 0.1, 0.2):
        failures.add("a", now)
    assert not failures.hopeless(["a"], 0.3), "every actor fails when a network blinks"
    assert failures.hopeless(["a"], 3.1)
    failures.forgive("a")
    assert not failures.hopeless(["a"], 10.0)


def test_it_does_not_give_up_while_another_actor_has_not_failed():
    failures = Failures(3)
    for now in range(100):
        failures.add("old", float(now))
    assert not failures.hopeless(["old", "new"], 100.0)
    assert failures.avoided(100.0) == {"old"}
    failures.add("new", 100.0)
    assert failures.hopeless(["old", "new"], 100.0)


def test_one_that_does_well_clears_nobody_elses_name():
    failures = Failures(3)
    for now in range(5):
        failures.add("old", float(now))
        failures.forgive("new")
    assert failures.avoided(5.0) == {"old"}
    assert failures.avoided(64.1) == frozenset(), "each gets another chance"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_a_run_whose_trajectories_are_taken_is_never_without_hope(events):
    failures = Failures(2)
    for now, (actor, taken) in enumerate(events):
        failures.forgive(actor) if taken else failures.add(actor, float(now))
        if taken:
            assert not failures.hopeless(["a", "b", "c"], now + 100.0)


async def test_other_nodes_are_asked_in_turn_by_their_slots():
    async with open_channel("127.0.0.1:1") as channel:
        actors = RolloutActors(channel, "rollout")
        assert actors.node_without({"x"}) == "", "nobody is known"
        actors.members = [
            RolloutActor("x", "n1", 4),
            RolloutActor("y", "n2", 1),
            RolloutActor("z", "n3", 2),
            RolloutActor("v", "n1", 1),
        ]
        assert actors.slots == 8
        assert [actors.node_without({"x"}) for _ in range(6)] == ["n2", "n3", "n3"] * 2
        assert actors.node_without(()) == "", "all are well"
        assert actors.node_without({"x", "y", "z"}) == "", "none is well"


def test_rollouts_that_run_out_of_time_are_not_waited_for_as_often():
    failures = Failures(20)
    for second in (0.0, 60.0, 120.0):
        assert not failures.hopeless(["a"], second)
        failures.add("a", second, timed_out=True)
    assert failures.hopeless(["a"], 120.0)
    failures.forgive("a")
    assert failures.timeouts == 0
