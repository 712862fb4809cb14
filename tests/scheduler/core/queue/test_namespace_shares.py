"""A namespace's share of the fleet's slots."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlmesh.security.config import SecurityConfig
from scheduler.config import SchedulerConfig
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.core import Core
from scheduler.core.task import Failure, Task, TaskState
from scheduler.core.task_explanation import explain

SECURE = SecurityConfig(tokens=Path("tokens.yaml"))


class Fleet:
    """A core and its actors, which have unlimited credits."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.core = Core(config, now=0.0, wall_time=0.0, rng=random.Random(1))
        self.now = 0.0
        self.count = 0

    def connect(self, slots: int) -> int:
        self.count += 1
        session = self.count
        self.core.connect(Hello(session, f"a-{session}", f"n-{session}", 1, slots, ("noop", "other")), self.now)
        self.core.report(session, self.now, credits=1000)
        return session

    def submit(self, owner: str, count: int, **task: Any) -> list[str]:
        submitter = f"{owner}ada" if owner.endswith("/") else owner
        tasks = [Task("", task.get("kind", "noop"), submitter=submitter, priority=task.get("priority", 3))]
        tasks = [Task("", one.kind, submitter=submitter, priority=one.priority) for one in tasks * count]
        return self.core.submit(tasks, self.now, owner)

    def running(self, owner: str) -> list[Task]:
        return [
            task for task in self.core.life.tasks.values() if task.state is TaskState.RUNNING and task.owner == owner
        ]

    def end(self, tasks: list[Task], failure: Failure | None = None) -> None:
        for task in tasks:
            assert task.actor is not None
            session = task.actor.session
            self.core.report(session, self.now, results=[(task.task_id, task.lease_id, b"", failure, 10.0)], credits=1)


def fleet(**namespace: float) -> Fleet:
    return Fleet(SchedulerConfig.model_validate({"security": SECURE, "namespace": namespace}))


def test_a_namespace_holds_half_of_the_slots_and_the_others_stay_free_for_others() -> None:
    found = fleet()
    found.connect(4)
    found.connect(4)
    (*_, last) = found.submit("team-a/", 20)
    assert len(found.running("team-a/")) == 4
    assert "hold 4 slots, as many as they may" in explain(found.core, found.core.task(last), 0.0)
    found.submit("ada", 3)
    assert len(found.running("ada")) == 3
    # A finished task makes room for the next of its namespace, on any actor with a free slot.
    found.end(found.running("team-a/")[:2])
    assert len(found.running("team-a/")) == 4
    assert len(found.running("ada")) == 3


def test_slots_that_come_and_go_change_what_a_namespace_may_hold() -> None:
    found = fleet(slots_share=0.5)
    found.connect(2)
    found.submit("team-a/", 20)
    assert len(found.running("team-a/")) == 1
    second = found.connect(6)
    assert len(found.running("team-a/")) == 4
    found.core.disconnect(second, 1.0)
    # Tasks of the lost actor count until reassigned, and the namespace may have one of two slots.
    here = [task for task in found.running("team-a/") if task.actor_id == "a-1"]
    assert 0 < len(here) < 4
    found.end(here)
    assert [task for task in found.running("team-a/") if task.actor_id == "a-1"] == []


def test_a_namespace_always_has_one_slot_and_the_operator_may_give_it_all() -> None:
    found = fleet()
    found.connect(1)
    found.submit("team-a/", 2)
    assert len(found.running("team-a/")) == 1
    all_of_it = Fleet(
        SchedulerConfig.model_validate({"security": SECURE, "namespaces": {"team-a": {"slots_share": 1}}})
    )
    all_of_it.connect(8)
    all_of_it.submit("team-a/", 20)
    assert len(all_of_it.running("team-a/")) == 8


def test_without_security_nobody_has_a_share() -> None:
    found = Fleet(SchedulerConfig())
    found.connect(8)
    tasks = [Task(f"t{number}", "noop", submitter="app/worker") for number in range(20)]
    for number, task in enumerate(tasks, 1):
        task.number, task.submit_time = number, 0.0
        found.core.life.tasks[task.task_id] = task
    # Tasks from a journal get their owner from the submitter's name.
    found.core.life.enter_all(tasks)
    found.core.life.make_ready(tasks, 0.0)
    found.core.tick(1.0, 1.0)
    assert sum(task.state is TaskState.RUNNING for task in tasks) == 8


@pytest.mark.parametrize("kinds", [["noop"], ["noop", "other"]])
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["submit", "end", "fail", "cancel", "connect", "disconnect", "tick"]),
            st.sampled_from(["team-a/", "team-b/", "ada"]),
            st.integers(1, 6),
        ),
        max_size=40,
    ),
    share=st.sampled_from([0.1, 0.3, 0.5, 1.0]),
)
def test_whatever_happens_no_namespace_gets_more_than_its_share_and_no_slot_waits_for_nothing(
    kinds: list[str], steps: list[tuple[str, str, int]], share: float
) -> None:
    found = fleet(slots_share=share)
    core = found.core
    sessions = [found.connect(4)]
    random_ = random.Random(1)
    for step, owner, count in steps:
        found.now += 0.1
        before = {owner: len(found.running(owner)) for owner in ("team-a/", "team-b/")}
        if step == "submit":
            found.submit(owner, count, kind=random_.choice(kinds), priority=random_.randint(1, 4))
        elif step in ("end", "fail"):
            found.end(found.running(owner)[:count], Failure("X", "x", retryable=True) if step == "fail" else None)
        elif step == "cancel":
            names = [task.task_id for task in core.life.tasks.values() if not task.final and task.owner == owner]
            if names:
                core.cancel(names[:count], found.now)
        elif step == "connect":
            sessions.append(found.connect(count))
        elif step == "disconnect" and len(sessions) > 1:
            core.disconnect(sessions.pop(), found.now)
        elif step == "tick":
            for session in sessions:
                leases = [task.lease for task in core.sessions.by_number[session].leases.values()]
                core.report(session, found.now, heartbeat=leases)
            core.tick(found.now, found.now)
        core.take_actions()
        slots = core.life.fleet.slots
        most = max(1, int(share * slots))
        for team in ("team-a/", "team-b/"):
            running = len(found.running(team))
            assert running <= max(most, before[team])
            waiting = [t for t in core.life.tasks.values() if t.state is TaskState.QUEUED and t.owner == team]
            free = any(actor.room > 0 for actor in core.life.fleet.actors.values())
            assert not (waiting and running < most and free)
            if waiting or running:
                held = core.life.queue.shares.of((waiting or found.running(team))[0])
                assert held is not None
                assert held.held == running
