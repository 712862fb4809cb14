"""One node's way through a cycle: its answers, the chosen action, and other loops."""

import asyncio
from typing import Any

import pytest

from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.node.thresholds import STEADY
from parlmesh.mapek.planning.trained_planner import Policy
from parlmesh.mapek.types import Health, Status
from parlmesh.testing.clocks import HandClock

from .local_fleet import local_loop


async def test_two_loops_at_the_very_same_moment_do_one_thing(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "one.sqlite") as one, Knowledge(tmp_path / "two.sqlite") as two:
        loops = [local_loop(fleet, each, name=name, lease_seconds=60) for name, each in (("one", one), ("two", two))]
        for _ in range(3):
            reports = await asyncio.gather(*(loop.cycle() for loop in loops))
            assert notes() == ["did-a"]
        held = [each.reason for report in reports for each in report.decisions]
    assert any("holds the node's lease for another" in reason for reason in held)
    assert any("cooling down" in reason for reason in held)


async def test_a_node_whose_answer_is_nonsense_spoils_no_other(notes, readings, fleet, tmp_path) -> None:
    readings.cpu |= {"a": 95.0, "b": 10**400}
    broken = fleet.handlers["mapek_analyse"].run

    async def breaks(parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> Any:
        if parameters["node"] == "c":
            raise ZeroDivisionError("a defect")
        return await broken(parameters, tensors, context)

    fleet.handlers["mapek_analyse"].run, fleet.nodes = breaks, ["a", "b", "c"]
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        report = await local_loop(fleet, knowledge).cycle()
    assert [each.health for each in report.nodes] == [Health.SICK, Health.UNKNOWN, Health.UNKNOWN]
    assert report.nodes[1].why_unknown == "cpu_percent: it is not a number"
    assert "a defect" in report.nodes[2].why_unknown
    assert notes() == ["did-a"]


async def test_a_value_that_is_not_a_number_is_not_a_success(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    fleet.dies = lambda kind, parameters, when: bool(
        kind == "mapek_execute" and when == "after" and readings.cpu.update(a=float("nan"))
    )
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        [decision] = (await local_loop(fleet, knowledge).cycle()).decisions
    assert decision.status is Status.ROLLED_BACK
    assert notes() == ["did-a", "undid-a"]


async def test_a_clock_that_goes_back_a_year_holds_nothing_for_a_year(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    later, now = HandClock(4e9), HandClock(4e9 - 3e7)
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await local_loop(fleet, knowledge, clock=later).cycle()
        assert notes() == ["did-a"]
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(fleet, knowledge, clock=now)
        for _ in range(STEADY):
            report = await loop.cycle()
        assert "cooling down for another 3600 s" in report.decisions[0].reason
        now.advance(3601.0)
        await loop.cycle()
    assert notes() == ["did-a", "did-a"]


async def test_one_loop_goes_through_fault_after_fault(notes, readings, fleet, tmp_path) -> None:
    clock, faults = HandClock(), 3
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(fleet, knowledge, clock=clock)
        for number in range(faults):
            node = "ab"[number % 2]
            readings.cpu[node] = 95.0
            report = await loop.cycle()
            assert [(each.node, each.status) for each in report.actions] == [(node, Status.WORKED)]
            readings.cpu[node] = 20.0
            # Healthy for long enough that the next fault is a new one.
            for _ in range(22):
                report = await loop.cycle()
            assert [each.health for each in report.nodes] == [Health.HEALTHY, Health.HEALTHY]
            clock.advance(3600.0)
        [worked] = knowledge.what_worked()
    assert (worked["tries"], worked["worked"]) == (faults, faults)
    assert notes() == [f"did-{'ab'[number % 2]}" for number in range(faults)]


def policy_that_prefers(*names: str) -> Policy:
    """Prefers earlier actions, whatever the symptom."""
    actions = {
        name: {"weights": [9.0 - place, 0.0, 0.0], "seconds": 1.0, "tries": 9} for place, name in enumerate(names)
    }
    rule = {"contexts": [], "metrics": {}, "actions": actions}
    return Policy.model_validate({"decisions": 9, "rules": {"cpu_percent": rule}})


async def test_a_trained_policy_plans_within_the_rules(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    # No rule lists its first choice, and its second is another rule's.
    policy_that_prefers("format-the-disk", "elsewhere", "second", "first").save(tmp_path / "planner.json")
    lever = {"kind": "lever", "confirm_seconds": 0}
    actions = {name: {**lever, "parameters": {"target": name}} for name in ("first", "second", "elsewhere")}
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(
            fleet,
            knowledge,
            actions=actions,
            rules=[
                {"symptom": "cpu_percent", "actions": ["first", "second"]},
                {"symptom": "unreachable", "actions": ["elsewhere"]},
            ],
            planner={"kind": "policy", "policy": str(tmp_path / "planner.json")},
        )
        [decision] = (await loop.cycle()).decisions
    assert notes() == ["did-second"]
    assert "works with chance 1.00 here" in decision.reason
    assert decision.inputs["policy"] == Policy.load(tmp_path / "planner.json").digest


@pytest.mark.parametrize("told", ["elsewhere", ["first"], None, 7])
async def test_a_planners_forbidden_choice_is_ignored(notes, readings, fleet, tmp_path, told) -> None:
    readings.cpu["a"] = 95.0

    async def plans(parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        return {"action": told, "reason": "I know better", "standing": {"pull": "x"}}

    fleet.handlers["mapek_plan"].run = plans
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        [decision] = (await local_loop(fleet, knowledge).cycle()).decisions
    assert decision.status is Status.HELD
    assert "does not allow" in decision.reason
    assert notes() == []
