"""Placement: matching, balance between unequal actors, and few tasks held in advance."""

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.actors.placement import Actor, Fleet
from scheduler.core.queue.task_class import TaskClass
from scheduler.core.task import Placement, Task
from tests.scheduler.conftest import Harness

labels = st.frozensets(st.tuples(st.sampled_from("ab"), st.sampled_from("12")), max_size=3)
kinds = st.frozensets(st.sampled_from(["x", "y", "z"]), min_size=1)


@given(
    st.lists(st.tuples(kinds, labels, st.sampled_from(["n1", "n2"])), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from("xyz"), labels, st.sampled_from(["", "n1", "n2"])), max_size=6, unique=True),
    st.booleans(),
)
def test_an_actor_is_chosen_exactly_when_one_fits(
    actors: list[tuple[frozenset[str], frozenset[tuple[str, str]], str]],
    classes: list[tuple[str, frozenset[tuple[str, str]], str]],
    classes_first: bool,
) -> None:
    fleet = Fleet(random.Random(1))
    made = [TaskClass(kind, Placement(node_id, asked)) for kind, asked, node_id in classes]
    if classes_first:
        for task_class in made:
            fleet.add_class(task_class)
    for number, (able, has, node_id) in enumerate(actors):
        actor = Actor(str(number), node_id)
        actor.session = number + 1
        actor.credits = 1
        fleet.place(actor, able, has, made if classes_first else ())
        fleet.settle(actor)
    if not classes_first:
        for task_class in made:
            fleet.add_class(task_class)
    for task_class, (kind, asked, wanted) in zip(made, classes, strict=True):
        fitting = {
            str(number)
            for number, (able, has, node_id) in enumerate(actors)
            if kind in able and asked <= has and wanted in ("", node_id)
        }
        chosen = {found.actor_id for _ in range(30) if (found := fleet.choose(task_class)) is not None}
        assert chosen <= fitting
        assert bool(chosen) == bool(fitting)
        assert {actor.actor_id for actor in fleet.able(task_class)} == fitting
    for actor in list(fleet.actors.values()):
        fleet.displace(actor)
    assert all(fleet.choose(task_class) is None for task_class in made)


def run(harness: Harness, seconds: dict[int, float], tasks: int) -> float:
    """Virtual time until all tasks are done; each session takes the given time per task."""
    harness.submit(*[Task(f"{number}", "noop") for number in range(tasks)])
    free = dict.fromkeys(seconds, 0.0)
    ends: list[tuple[float, int, Task]] = []
    waiting: dict[int, list[Task]] = {session: [] for session in seconds}

    def start() -> None:
        for session in seconds:
            waiting[session] += harness.take(session)
            while waiting[session] and free[session] <= harness.now:
                task = waiting[session].pop(0)
                if task.actor is None or task.actor.session != session:
                    continue
                free[session] = harness.now + seconds[session]
                heappush(ends, (free[session], session, task))

    began = harness.now
    start()
    while ends:
        time, session, task = heappop(ends)
        while harness.now + 0.25 < time:
            harness.pass_time(0.25, alive=list(seconds))
            start()
        harness.now = max(harness.now, time)
        harness.finish(session, task, ran=seconds[session])
        start()
    assert len(harness.outcomes) == tasks
    return harness.now - began


@pytest.mark.parametrize("prefetch", [0.0, 0.02, 1.0])
def test_unequal_actors_finish_within_a_fifth_of_the_ideal(prefetch: float) -> None:
    harness = Harness(dispatch={"prefetch_seconds": prefetch})
    speeds = {harness.connect(f"a{number}", credits=8): 0.1 if number % 2 else 1.0 for number in range(4)}
    ideal = 200 / sum(1.0 / seconds for seconds in speeds.values())
    assert run(harness, speeds, 200) <= 1.2 * ideal


def test_a_slow_actor_gets_its_share_and_no_more() -> None:
    harness = Harness()
    speeds = {harness.connect("slow"): 1.0, harness.connect("quick"): 0.1}
    run(harness, speeds, 110)
    slow = sum(1 for task in harness.outcomes if task.actor_id == "slow")
    assert 8 <= slow <= 12


def test_urgent_work_is_held_behind_no_more_than_the_prefetch_time() -> None:
    harness = Harness(dispatch={"prefetch_seconds": 0.02})
    actor = harness.connect("a", credits=500)
    for _ in range(30):
        harness.submit(*[Task("", "noop") for _ in range(20)])
        harness.finish(actor, ran=0.005)
    harness.submit(*[Task("", "noop") for _ in range(500)])
    assert 1 < len(harness.actor("a").leases) <= 1 + 0.02 / 0.005 + 1
