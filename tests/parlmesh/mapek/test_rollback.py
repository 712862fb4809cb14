"""Nothing stays half done: a loop killed at any step of an action undoes it when it restarts."""

from typing import Any

import pytest

from parlmesh.errors import FailedPrecondition
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.types import Decision, Health, Status

from .local_fleet import Killed, LocalFleet, local_loop

STEPS = {
    "before it is sent": ("mapek_execute", "do", "before"),
    "after it was done": ("mapek_execute", "do", "after"),
    "before the effect is measured": ("mapek_monitor", "", "before"),
    "before it is confirmed": ("mapek_execute", "confirm", "before"),
    "after it was confirmed": ("mapek_execute", "confirm", "after"),
}


@pytest.mark.parametrize("step", STEPS)
async def test_a_loop_killed_at_any_step_undoes_the_action_when_it_starts_again(
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
        await local_loop(fleet, knowledge).cycle("sequential")
    fleet.dies, readings.cpu["a"] = lambda *_: False, 20.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await local_loop(fleet, knowledge).cycle()
        [decision] = knowledge.decisions(10, held=False)
        assert knowledge.owed() == []
    assert "the loop ended before there was an answer" in decision.error
    if step == "before it is sent":
        assert (notes(), decision.status) == ([], Status.UNKNOWN)
    else:
        assert (notes(), decision.status) == (["did-a", "undid-a"], Status.ROLLED_BACK)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_only_a_killed_loops_own_quarantine_is_ended(notes, readings, fleet, tmp_path, when) -> None:
    readings.cpu["a"] = 95.0
    fleet.dies = lambda kind, parameters, now: kind == "quarantine" and now == when
    settings: dict[str, Any] = {"action": {"kind": "quarantine", "parameters": {"reason": "hot"}, "verify": None}}
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        if when == "after":
            with pytest.raises(Killed):
                await local_loop(fleet, knowledge, **settings).cycle()
            assert fleet.quarantined == {"a": "hot"}
        else:
            # It was recorded but never done; then an operator quarantines the node.
            owed = {"before": {"reason": "hot"}, "parameters": {}}
            decision = await _started(fleet, knowledge, settings)
            knowledge.save([decision], owed={decision.id: owed})
            fleet.quarantined["a"] = "its disk is full"
    fleet.dies, readings.cpu["a"] = lambda *_: False, 20.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        await local_loop(fleet, knowledge, **settings).cycle()
        assert knowledge.owed() == []
    assert fleet.quarantined == ({} if when == "after" else {"a": "its disk is full"})


async def _started(fleet: LocalFleet, knowledge: Knowledge, settings: dict[str, Any]) -> Decision:
    await local_loop(fleet, knowledge, **{**settings, "dry_run": True}).cycle()
    [decision] = knowledge.decisions(1, held=False)
    decision.status = Status.STARTED
    return decision


async def test_an_action_without_an_answer_is_undone_as_soon_as_the_node_answers(
    notes, readings, fleet, tmp_path
) -> None:
    readings.cpu["a"] = 95.0
    fleet.lost = lambda kind, parameters: kind == "mapek_execute"
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(
            fleet, knowledge, rules=[{"symptom": "cpu_percent", "actions": ["pull"], "cooldown_seconds": 0}]
        )
        await loop.cycle()
        assert [each.status for each in knowledge.decisions(1)] == [Status.UNKNOWN]
        held = (await loop.cycle()).decisions
        assert [each.reason for each in held] == ["the rollback of an earlier action on this node is pending"]
        fleet.lost = lambda *_: False
        await loop.cycle()
        assert knowledge.owed() == []
        assert Status.ROLLED_BACK in [each.status for each in knowledge.decisions(10, held=False)]
    assert notes()[:2] == ["did-a", "undid-a"]


async def test_a_confirmation_without_an_answer_is_not_a_success(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    fleet.lost = lambda kind, parameters: bool(parameters.get("confirm"))
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(fleet, knowledge)
        await loop.cycle()
        [decision] = knowledge.decisions(1)
        assert decision.status is Status.UNKNOWN
        assert "not confirmed" in decision.error
        await loop.cycle()
        assert knowledge.decision(decision.id).status is Status.ROLLED_BACK
    assert notes() == ["did-a", "undid-a"]


async def test_a_knowledge_belongs_to_one_process(fleet, tmp_path) -> None:
    with Knowledge(tmp_path / "k.sqlite") as knowledge, Knowledge(tmp_path / "k.sqlite") as other:
        local_loop(fleet, knowledge)
        local_loop(fleet, knowledge)
        with pytest.raises(FailedPrecondition, match="another loop uses"):
            local_loop(fleet, other)
    with Knowledge(tmp_path / "k.sqlite") as other:
        local_loop(fleet, other)


async def test_actions_that_cannot_be_recorded_are_not_taken_and_watching_continues(
    notes, readings, fleet, tmp_path
) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(fleet, knowledge)
        writable(knowledge, False)
        report = await loop.cycle()
        assert "readonly" in report.trouble, "the fault took place"
        assert [each.health for each in report.nodes] == [Health.SICK, Health.HEALTHY]
        assert "no action is taken without a record" in report.decisions[0].reason
        assert notes() == []
        writable(knowledge, True)
        report = await loop.cycle()
        assert (report.trouble, notes()) == ("", ["did-a"])
        assert len(knowledge.decisions(10, held=False)) == 1


async def test_a_disk_that_fails_during_an_action_undoes_nothing_that_worked(notes, readings, fleet, tmp_path) -> None:
    readings.cpu["a"] = 95.0
    with Knowledge(tmp_path / "k.sqlite") as knowledge:
        loop = local_loop(fleet, knowledge)

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
    """Like a disk that is full or mounted read-only."""
    knowledge._database.execute(f"PRAGMA query_only = {'OFF' if yes else 'ON'}")
