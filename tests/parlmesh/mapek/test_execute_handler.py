"""The effector of a node: unconfirmed actions are undone, if need be by the next actor."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.execute_handler import Execute
from parlmesh.mapek.node.node_memory import NodeState
from parlmesh.mapek.node.settings import node_settings
from parlmesh.mapek.node.undo_log import Deeds, DeedState
from parlmesh.testing.clocks import HandClock
from parlmesh.testing.processes import wait_until_async

HERE = Path(__file__).parent
SECONDS = 20.0


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def handler(clock: HandClock) -> Execute:
    return Execute(clock)


def asked(decision: str, **changes: Any) -> dict[str, Any]:
    return {
        "node": "n",
        "decision": decision,
        "loop": "one",
        "lease_seconds": 5,
        "action": "lever",
        "parameters": {"target": "t", **changes.pop("parameters", {})},
        "timeout_seconds": 30,
        **changes,
    }


async def run(handler: Execute, decision: str, **changes: Any) -> dict[str, Any]:
    return await handler.run(asked(decision, **changes), {}, None)


def state_of(decision: str) -> DeedState | None:
    found = Deeds(NodeState(node_settings().folder(), "n")).find(decision)
    return found.state if found else None


async def test_confirmed_actions_stand_and_others_are_undone(notes, handler, clock) -> None:
    assert (await run(handler, "a", confirm_seconds=60))["unconfirmed_seconds"] == 60
    assert (await run(handler, "a", confirm=True))["done"] is True
    assert (await run(handler, "b", confirm_seconds=60, parameters={"target": "other"}))["done"] is True
    assert await handler.take_back_overdue("n") == 60
    clock.advance(60)
    assert await handler.take_back_overdue("n") is None
    assert notes() == ["did-t", "did-other", "undid-other"]
    assert (state_of("a"), state_of("b")) == (DeedState.STANDS, DeedState.UNDONE)
    late = await run(handler, "b", confirm=True)
    assert (late["done"], late["detail"]) == (False, "its state is undone")
    again = await run(handler, "b", undo=True)
    assert again["done"] is True
    assert "has already undone it" in again["detail"]
    assert notes() == ["did-t", "did-other", "undid-other"]


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"instead_of": "explode"}, "action is 'explode'; this node has "),
        ({"instead_of": "restart_unit"}, "unit of restart_unit must be text"),
    ],
)
async def test_a_dry_run_of_what_could_not_be_done_here_fails_as_it_would(handler, parameters, sentence) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        await run(handler, "a", action="dry_run", parameters=parameters)
    ready = {"instead_of": "restart_unit", "unit": "web.service"}
    assert (await run(handler, "b", action="dry_run", parameters=ready))["done"] is True


async def test_deeds_are_checked_as_long_as_the_actor_lives(notes) -> None:
    handler = Execute()
    attending = asyncio.create_task(handler.attend("n"))
    try:
        await run(handler, "a", confirm_seconds=0.01)
        await wait_until_async(lambda: state_of("a") is DeedState.UNDONE, SECONDS)
        with pytest.raises(InvalidInput, match="this is 'n'"):
            await run(handler, "b", node="m")
    finally:
        attending.cancel()
        await asyncio.wait([attending])
    assert notes() == ["did-t", "undid-t"]


async def test_a_node_belongs_to_its_loop_until_the_action_is_confirmed_or_undone(notes, handler, clock) -> None:
    await run(handler, "a", confirm_seconds=30)
    clock.advance(20)
    assert "loop one holds the node's lease for another 15 s" in (await run(handler, "b", loop="two"))["refused"]
    await run(handler, "a", confirm=True)
    clock.advance(5)
    assert (await run(handler, "b", loop="two"))["done"] is True


async def test_overdue_actions_are_undone_before_another_loop_acts(notes, handler, clock) -> None:
    await run(handler, "a", confirm_seconds=30)
    clock.advance(35)
    await run(handler, "b", loop="two")
    assert notes() == ["did-t", "undid-t", "did-t"]


async def test_an_undo_that_fails_is_tried_again(notes, handler, clock) -> None:
    await run(handler, "a", parameters={"stuck": 2})
    first = await run(handler, "a", undo=True)
    assert (first["done"], first["pending"]) == (False, True)
    for _ in range(2):
        left = await handler.take_back_overdue("n")
        assert left is not None
        clock.advance(left)
    assert await handler.take_back_overdue("n") is None
    assert notes() == ["did-t", "stuck", "stuck", "undid-t"]


async def test_an_action_that_may_not_be_rolled_back_is_left_alone(notes, handler, clock) -> None:
    answer = await run(handler, "a", rollback=False, confirm_seconds=60)
    assert "unconfirmed_seconds" not in answer
    clock.advance(1000)
    assert await handler.take_back_overdue("n") is None
    assert (await run(handler, "a", undo=True))["detail"] == "there is nothing to undo"
    assert notes() == ["did-t"]


PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from parlmesh.mapek.execute_handler import Execute

async def main():
    handler = Execute()
    for asked in json.loads(sys.argv[2]):
        await handler.run(asked, {}, None)

asyncio.run(main())
"""


@pytest.mark.e2e
@pytest.mark.parametrize("step", ["before", "first", "last", "undo"])
async def test_an_action_killed_at_any_step_is_undone_by_the_next_actor(notes, step: str) -> None:
    asks = [asked("a", parameters={"dies": step}, confirm_seconds=60)]
    if step == "undo":
        asks.append(asked("a", undo=True))
    command = [sys.executable, "-c", PROGRAM, str(HERE), json.dumps(asks)]
    done = await asyncio.to_thread(subprocess.run, command, timeout=60)
    assert done.returncode == -9, "the fault took place"
    # The next actor starts when the first one's time is over.
    handler = Execute(lambda: time.monotonic() + 1000.0)
    await handler.take_back_overdue("n")
    if step == "before":
        assert state_of("a") is None
        assert notes() == [], "nothing was begun"
        return
    assert notes()[-1] == "undid-t"
    assert state_of("a") is DeedState.UNDONE
    again = await run(handler, "a")
    assert again["done"] is (step == "undo"), "what it answered before, or that it was broken off"
    assert notes()[-1] == "undid-t", "and nothing is done again"
