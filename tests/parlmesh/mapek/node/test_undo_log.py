"""Actions that a node may have to undo: a confirmed one stands, any other is overdue in time."""

from pathlib import Path

import pytest

from parlmesh.mapek.node import undo_log as module
from parlmesh.mapek.node.node_memory import NodeState
from parlmesh.mapek.node.undo_log import GRACE_SECONDS, Deeds, DeedState
from parlmesh.testing.clocks import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def deeds(tmp_path: Path, clock: HandClock) -> Deeds:
    return Deeds(NodeState(tmp_path, "n", clock))


def done(deeds: Deeds, name: str, *, target: str = "10.8.0.0/16", confirm_seconds: float = 60.0) -> bool:
    deeds.begin(name, "route", target, {"via": name}, {"routes": []}, 30.0)
    return deeds.done(name, {"routes": [name]}, confirm_seconds)


def test_a_deed_confirmed_in_time_stands(deeds: Deeds, clock: HandClock) -> None:
    assert done(deeds, "a")
    assert deeds.next_seconds() == 60.0
    clock.advance(59.0)
    assert deeds.take_overdue() == []
    assert deeds.confirm("a") is DeedState.STANDS
    clock.advance(1000.0)
    assert deeds.take_overdue() == []
    assert deeds.next_seconds() is None


def test_an_unconfirmed_deed_is_overdue_and_can_no_longer_be_confirmed(deeds: Deeds, clock: HandClock) -> None:
    done(deeds, "a")
    clock.advance(60.0)
    [deed] = deeds.take_overdue()
    assert (deed.decision, deed.parameters, deed.undo, deed.state) == (
        "a",
        {"via": "a"},
        {"routes": ["a"]},
        DeedState.DONE,
    )
    assert deeds.confirm("a") is DeedState.UNDOING
    assert deeds.take_overdue() == [], "one at a time"
    deeds.ended("a", DeedState.UNDONE, "as before")
    assert deeds.confirm("a") is DeedState.UNDONE
    assert deeds.take("a") is None


def test_an_interrupted_deed_is_overdue_after_its_time_limit(deeds: Deeds, clock: HandClock) -> None:
    deeds.begin("a", "route", "t", {}, {"routes": ["before"]}, 30.0)
    clock.advance(30.0)
    assert deeds.take_overdue() == [], "it may still be running"
    clock.advance(GRACE_SECONDS)
    assert [deed.undo for deed in deeds.take_overdue()] == [{"routes": ["before"]}]


def test_an_undo_that_dies_is_tried_again_after_growing_delays(deeds: Deeds, clock: HandClock) -> None:
    done(deeds, "a")
    clock.advance(60.0)
    assert len(deeds.take_overdue()) == 1
    for tries in (1, 2, 3):
        wait = deeds.next_seconds()
        assert wait == (30.0 + GRACE_SECONDS) * 2 ** (tries - 1)
        clock.advance(wait or 0.0)
        assert [deed.tries for deed in deeds.take_overdue()] == [tries]


def test_deeds_from_before_the_machine_started_are_overdue_at_once(
    deeds: Deeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(deeds, "a")
    done(deeds, "b")
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    assert [deed.decision for deed in deeds.take_overdue()] == ["b", "a"], "the newest first"


def test_a_deed_that_a_later_one_depends_on_is_left_alone(deeds: Deeds) -> None:
    done(deeds, "a", confirm_seconds=0.0)
    done(deeds, "elsewhere", target="10.9.0.0/16")
    assert deeds.take("a") is not None
    deeds.ended("a", DeedState.STANDS, "")
    done(deeds, "b")
    assert deeds.take("a") is None
    assert deeds.take("b") is not None
    deeds.ended("b", DeedState.UNDONE, "")
    assert deeds.take("a") is not None


def test_what_cannot_be_undone_or_needs_no_confirmation_waits_for_none(deeds: Deeds) -> None:
    deeds.begin("a", "restart_unit", "nginx", {}, None, 30.0)
    assert not deeds.done("a", None, 60.0)
    assert not done(deeds, "b", confirm_seconds=0.0)
    assert deeds.next_seconds() is None


def test_old_deeds_are_forgotten_unless_they_wait(deeds: Deeds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 3)
    done(deeds, "waits")
    for number in range(6):
        done(deeds, f"stands-{number}", confirm_seconds=0.0)
    assert deeds.find("waits") is not None
    assert deeds.find("stands-0") is None
    assert deeds.find("stands-5") is not None
