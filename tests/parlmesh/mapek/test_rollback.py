"""Nothing stays half done: a loop that is killed at any step of an action takes it back when it is started again."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition
from parlmesh.mapek.config import MapekConfig
from parlmesh.mapek.execute_handler import Execute
from parlmesh.mapek.handlers import Analyse, Plan
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.loop import MapekLoop
from parlmesh.mapek.node.settings import VARIABLE
from parlmesh.mapek.node.thresholds import STEADY
from parlmesh.mapek.types import Decision, Health, Status
from parlmesh.testing.clocks import HandClock

from .local_fleet import Killed, LocalFleet

HERE = Path(__file__).parent


class Readings:
    """What a test says of the nodes."""

    kind = "mapek_monitor"
    runs_in = "loop"

    def __init__(self) -> None:
        self.cpu: dict[str, Any] = {}

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"metrics": {"cpu_percent": self.cpu.get(parameters["node"], 20.0)}}


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    settings = tmp_path / "node.yaml"
    allow = {"allow": {"lever": ["*"]}, "actions": {"lever": "lever:Lever"}}
    settings.write_text(yaml.safe_dump({"state": str(tmp_path / "state"), **allow}))
    monkeypatch.setenv(VARIABLE, str(settings))
    monkeypatch.setenv("LEVER", str(tmp_path / "notes"))
    monkeypatch.syspath_prepend(str(HERE))
    file = tmp_path / "notes"
    return lambda: file.read_text().split() if file.exists() else []


@pytest.fixture
def readings() -> Readings:
    return Readings()


@pytest.fixture
def fleet(readings: Readings) -> LocalFleet:
    handlers: dict[str, Any] = {each.kind: each for each in (readings, Analyse(), Plan(), Execute())}
    return LocalFleet(handlers, ["a", "b"])


def config(**changes: Any) -> MapekConfig:
    action = {"kind": "lever", "parameters": {"target": "{node}"}, "verify": {"below": 1000}}
    return MapekConfig.model_validate(
        {
            "dry_run": False,
            "thresholds": [{"metric": "cpu_percent", "above": 80}],
            "rules": [{"symptom": "cpu_percent", "actions": ["pull"], "cooldown_seconds": 3600}],
            "actions": {"pull": action | changes.pop("action", {})},
            "lease_seconds": 0.001,
            **changes,
        }
    )


def loop_of(fleet: LocalFleet, knowledge: Knowledge, **changes: Any) -> MapekLoop:
    clock = changes.pop("clock", None)
    return MapekLoop(cast(PARLController, fleet), config(**changes), knowledge, clock=clock)


STEPS = {
    "before it is sent": ("mapek_execute", "do", "before"),
    "after it was done": ("mapek_execute", "do", "after"),
    "before the effect is measured": ("mapek_monitor", "", "before"),
    "before it is confirmed": ("mapek_execute", "confirm", "before"),
    "after it was confirmed": ("mapek_execute", "confirm", "after"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_loop_killed_at_any_step_takes_the_action_back_when_it_starts_again(
    notes, readings, fleet, tmp_path, step
) -> None:
    wanted_kind, wanted_word, wanted_when = STEPS[step]
    seen = {"mapek_monitor": 0}

    def dies(kind: str, parameters: dict[str, Any], when: str) -> bool:
        if kind == "mapek_monitor" and parameters["node"] == "a" and when == "before":
            seen[kind] += 1
            return wanted_kind == kind and seen[kind] == 2
        word = "confirm" if parameters.get("confirm") else "do"
        return (kind, word, when) == (wanted_kind, wanted_word, wanted_when)

    readings.cpu["a"], fleet.dies = 95.0, dies
    with Knowledge(tmp_path / "k.sqlite") as knowledge, pytest.raises(Killed):
        await loop_of(fleet, knowledge).cycle("sequential")
    fleet.dies, readings.cpu["a"] = lambda *_: False, 20.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await loop_of(fleet, knowledge).cycle()
        [decision] = knowledge.decisions(10, held=False)
        assert knowledge.owed() == []
    assert "the loop ended before there was an answer" in decision.error
    if step == "before it is sent":
        assert (notes(), decision.status) == ([], Status.UNKNOWN)
    else:
        assert (notes(), decision.status) == (["did-a", "undid-a"], Status.ROLLED_BACK)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_killed_loops_quarantine_is_ended_and_nobody_elses(notes, readings, fleet, tmp_path, when) -> None:
    readings.cpu["a"] = 95.0
    fleet.dies = lambda kind, parameters, now: kind == "quarantine" and now == when
    settings: dict[str, Any] = {"action": {"kind": "quarantine", "parameters": {"reason": "hot"}, "verify": None}}
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        if when == "after":
            with pytest.raises(Killed):
                await loop_of(fleet, knowledge, **settings).cycle()
            assert fleet.quarantined == {"a": "hot"}
        else:
            # It was written down and never done; then an operator has reasons of his own.
            owed = {"before": {"reason": "hot"}, "parameters": {}}
            decision = await _started(fleet, knowledge, settings)
            knowledge.save([decision], owed={decision.id: owed})
            fleet.quarantined["a"] = "its disk is full"
    fleet.dies, readings.cpu["a"] = lambda *_: False, 20.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await loop_of(fleet, knowledge, **settings).cycle()
        assert knowledge.owed() == []
    assert fleet.quarantined == ({} if when == "after" else {"a": "its disk is full"})


async def _started(fleet: LocalFleet, knowledge: Knowledge, settings: dict[str, Any]) -> Decision:
    await loop_of(fleet, knowledge, **{**settings, "dry_run": True}).cycle()
    [decision] = knowledge.decisions(1, held=False)
    decision.status = Status.STARTED
    return decision


async def test_an_answer_that_never_came_is_taken_back_as_soon_as_the_node_answers(
    notes, readings, fleet, tmp_path
) -> None:
    readings.cpu["a"] = 95.0
    fleet.lost = lambda kind, parameters: kind == "mapek_execute"
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = loop_of(fleet, knowledge, rules=[{"symptom": "cpu_percent", "actions": ["pull"], "cooldown_seconds": 0}])
        await loop.cycle()
        assert [each.status for each in knowledge.decisions(1)] == [Status.UNKNOWN]
        held = (await loop.cycle()).decisions
        assert [each.reason for each in held] == ["an earlier action there is still to be taken back"]
        fleet.lost = lambda *_: False
        await loop.cycle()
        assert knowledge.owed() == []
        assert Status.ROLLED_BACK in [each.status for each in knowledge.decisions(10, held=False)]
    assert notes()[:2] == ["did-a", "undid-a"]


async def test_a_confirmation_without_an_answer_is_no_success(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    fleet.lost = lambda kind, parameters: bool(parameters.get("confirm"))
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = loop_of(fleet, knowledge)
        await loop.cycle()
        [decision] = knowledge.decisions(1)
        assert decision.status is Status.UNKNOWN
        assert "not confirmed" in decision.error
        await loop.cycle()
        assert knowledge.decision(decision.id).status is Status.ROLLED_BACK
    assert notes() == ["did-a", "undid-a"]


async def test_two_loops_at_the_very_same_moment_do_one_thing(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "one.sqlite") as one, Knowledge(tmp_path / "two.sqlite") as two:
        loops = [loop_of(fleet, each, name=name, lease_seconds=60) for name, each in (("one", one), ("two", two))]
        for _ in range(3):
            reports = await asyncio.gather(*(loop.cycle() for loop in loops))
            assert notes() == ["did-a"]
        held = [each.reason for report in reports for each in report.decisions]
    assert any("has the node for another" in reason for reason in held)
    assert any("cooling down" in reason for reason in held)


async def test_a_clock_that_goes_back_a_year_holds_nothing_for_a_year(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    later, now = HandClock(4e9), HandClock(4e9 - 3e7)
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await loop_of(fleet, knowledge, clock=later).cycle()
        assert notes() == ["did-a"]
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = loop_of(fleet, knowledge, clock=now)
        for _ in range(STEADY):
            report = await loop.cycle()
        assert "cooling down for another 3600 s" in report.decisions[0].reason
        now.advance(3601.0)
        await loop.cycle()
    assert notes() == ["did-a", "did-a"]


async def test_a_node_whose_answer_is_nonsense_spoils_no_other(notes, readings, fleet, tmp_path) -> None:
    readings.cpu |= {"a": 95.0, "b": 10**400}
    broken = fleet.handlers["mapek_analyse"].run

    async def breaks(parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> Any:
        if parameters["node"] == "c":
            raise ZeroDivisionError("a defect")
        return await broken(parameters, tensors, context)

    fleet.handlers["mapek_analyse"].run, fleet.nodes = breaks, ["a", "b", "c"]
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        report = await loop_of(fleet, knowledge).cycle()
    assert [each.health for each in report.nodes] == [Health.SICK, Health.UNKNOWN, Health.UNKNOWN]
    assert report.nodes[1].why_unknown == "cpu_percent: it is no number"
    assert "a defect" in report.nodes[2].why_unknown
    assert notes() == ["did-a"]


async def test_a_number_that_is_none_is_no_success(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    fleet.dies = lambda kind, parameters, when: bool(
        kind == "mapek_execute" and when == "after" and readings.cpu.update(a=float("nan"))
    )
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        [decision] = (await loop_of(fleet, knowledge).cycle()).decisions
    assert decision.status is Status.ROLLED_BACK
    assert notes() == ["did-a", "undid-a"]


async def test_a_knowledge_belongs_to_one_process(fleet, tmp_path) -> None:
    with Knowledge(tmp_path / "k.sqlite") as knowledge, Knowledge(tmp_path / "k.sqlite") as other:
        loop_of(fleet, knowledge)
        loop_of(fleet, knowledge)
        with pytest.raises(FailedPrecondition, match="another loop uses"):
            loop_of(fleet, other)
    with Knowledge(tmp_path / "k.sqlite") as other:
        loop_of(fleet, other)


async def test_what_cannot_be_remembered_is_not_done_and_watching_goes_on(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = loop_of(fleet, knowledge)
        writable(knowledge, False)
        report = await loop.cycle()
        assert "readonly" in report.trouble, "the fault took place"
        assert [each.health for each in report.nodes] == [Health.SICK, Health.HEALTHY]
        assert "cannot be remembered" in report.decisions[0].reason
        assert notes() == []
        writable(knowledge, True)
        report = await loop.cycle()
        assert (report.trouble, notes()) == ("", ["did-a"])
        assert len(knowledge.decisions(10, held=False)) == 1


async def test_a_disk_that_fails_during_an_action_takes_nothing_back_that_worked(
    notes, readings, fleet, tmp_path
) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = loop_of(fleet, knowledge)

        def fills(kind: str, parameters: dict[str, Any], when: str) -> bool:
            if parameters.get("confirm") and when == "after":
                writable(knowledge, False)
            return False

        fleet.dies = fills
        for _ in range(2):
            assert "readonly" in (await loop.cycle()).trouble, "the fault took place"
        assert [each[0].status for each in knowledge.owed()] == [], "it is under way until its end is written"
        writable(knowledge, True)
        assert (await loop.cycle()).trouble == ""
        assert knowledge.decisions(1, held=False)[0].status is Status.WORKED
        assert knowledge.owed() == []
    assert notes() == ["did-a"]


def writable(knowledge: Knowledge, yes: bool) -> None:
    """As a disk that is full or was mounted read-only."""
    knowledge._database.execute(f"PRAGMA query_only = {'OFF' if yes else 'ON'}")
