import asyncio
import json
import os
import sys
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Self

import pytest

from parlmesh.client.local_fleet import LocalFleet, child_environment
from parlmesh.errors import InvalidInput


@pytest.mark.parametrize(("workers", "processes"), [(2, 3), (2, 0), (1001, 1)])
async def test_an_impossible_number_of_processes_is_refused(workers: int, processes: int) -> None:
    with pytest.raises(InvalidInput, match=f"processes is {processes}; {workers} workers need"):
        LocalFleet(workers, processes=processes)


def test_children_import_what_the_parent_can_and_hear_nothing_meant_for_other_fleets() -> None:
    given_environment = {"HOME": "/h", "PARLMESH_SCHEDULER__LISTEN__PORT": "1", "PARLMESH_ACTOR__SLOTS": "2"}
    environment = child_environment(given_environment, ["", "/a"])
    assert environment == {
        "HOME": "/h",
        "PYTHONPATH": os.pathsep.join([os.getcwd(), "/a"]),
        "PARLMESH_IMPORTING": "1",
        "PARLMESH_ARGUMENTS": json.dumps(sys.argv[1:]),
    }


def test_a_command_line_that_is_too_long_for_the_system_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["program.py", "x" * 200_000])
    assert child_environment({}, [])["PARLMESH_ARGUMENTS"] == "[]"


class Stops:
    """Stands in for a supervisor: starts nothing, notes what is stopped."""

    def __init__(self, stopped: list[list[str]]) -> None:
        self.children: dict[str, SimpleNamespace] = {}
        self._stopped = stopped

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def start(self, spec: Any) -> None:
        self.children[spec.name] = SimpleNamespace(settled=asyncio.Event(), reason="")

    async def serving(self, name: str, *, deadline_seconds: float) -> int:
        return 1

    async def stop(self, names: Iterable[str] | None = None) -> None:
        self._stopped.append(sorted(self.children if names is None else names))


async def test_actors_leave_while_there_is_a_scheduler_to_take_their_results(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[list[str]] = []
    monkeypatch.setattr("parlmesh.client.local_fleet.Supervisor", lambda **_: Stops(stopped))
    fleet = LocalFleet(2, processes=2)
    await fleet.start()
    await fleet.stop()
    assert stopped == [["local-0", "local-1"], ["local-0", "local-1", "scheduler"]]


async def test_waits_end_with_the_reason_once_the_last_actor_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Stops([])
    monkeypatch.setattr("parlmesh.client.local_fleet.Supervisor", lambda **_: supervisor)
    lost: asyncio.Queue[str] = asyncio.Queue()
    fleet = LocalFleet(2, processes=2, on_lost=lost.put_nowait)
    await fleet.start()
    for name in ("local-0", "local-1"):
        assert lost.empty()
        supervisor.children[name].reason = f"{name} ended 9 times within 60 s"
        supervisor.children[name].settled.set()
        # Watchers have their turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert fleet.trouble.startswith(name) or name == "local-1"
    reason = await asyncio.wait_for(lost.get(), 5.0)
    assert reason == "no worker is left: local-1 ended 9 times within 60 s"
    await fleet.stop()
