"""What the injector reports as a finding: a process that does not start, unless there was no scheduler to connect
to."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parlmesh.testing import wait_until_async
from parlmesh.testing.history import Journal
from tools.faults.injector import Injector
from tools.faults.schedule import PlannedFault


class SlowMember:
    """Reports that it has started only at the third query."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.busy = asyncio.Lock()
        self.running = False
        self.waits = 0
        self.last_lines: list[str] = []
        self.process: Any = None

    async def start(self) -> None:
        self.running = True
        await self.wait_until_started()

    async def wait_until_started(self) -> None:
        await asyncio.sleep(0)
        self.waits += 1
        if self.waits < 3:
            raise AssertionError("did not log connected")

    async def kill(self) -> None:
        self.running = False

    def close(self) -> None:
        self.running = False


@pytest.mark.parametrize(("away", "findings"), [(True, 0), (False, 1)])
async def test_an_actor_that_cannot_connect_is_a_finding_unless_the_scheduler_was_away(
    tmp_path: Path, away: bool, findings: int
) -> None:
    scheduler, actor = SlowMember("scheduler"), SlowMember("actor-0")
    scheduler.waits, scheduler.running = 2, True
    fleet: Any = SimpleNamespace(members={"scheduler": scheduler, "actor-0": actor}, links={}, plan=None)
    with Journal(tmp_path / "journal.jsonl") as journal:
        injector = Injector(fleet, journal, asyncio.sleep)
        async with asyncio.TaskGroup() as group:
            if away:
                # The scheduler is away for as long as the actor needs.
                kill = PlannedFault(0.0, "kill_scheduler", "scheduler", 0.5, 0)
                group.create_task(injector._perform(kill, latest=float("inf")))
                await wait_until_async(scheduler.busy.locked, 10.0)
            await injector._start(actor)  # type: ignore[arg-type]
        assert len(injector.findings) == findings
        assert actor.waits == (3 if away else 1)
