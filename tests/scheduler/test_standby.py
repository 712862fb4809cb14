"""A standby checks when the lease ends, and does not hurry while the database is away."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from scheduler.standby import LOOKS_PER_LEASE, Standby
from scheduler.wire.leader_redirect import Seat

LEASE_SECONDS = 1_000.0


class Database:
    """A store whose lease ends at a set time; counts checks."""

    lease_seconds = LEASE_SECONDS
    leader, standbys = "s:1", 1

    def __init__(self, lapses_at: float, *, away: bool = False) -> None:
        self.lapses_at, self._away = lapses_at, away
        self.looks = 0

    def stand_by(self, _: float) -> Any:
        self.looks += 1
        if self._away:
            raise ConnectionRefusedError
        return SimpleNamespace() if time.monotonic() >= self.lapses_at else None


async def test_a_lease_that_ends_before_the_next_look_is_taken_when_it_ends() -> None:
    database: Any = Database(time.monotonic() + 0.05)
    async with asyncio.timeout(LEASE_SECONDS / LOOKS_PER_LEASE / 2):
        assert await Standby(database, Seat()).wait(asyncio.Event()) is not None


async def test_a_database_that_is_away_is_not_asked_more_often_because_the_lease_is_over() -> None:
    database: Any = Database(0.0, away=True)
    stop = asyncio.Event()
    waiting = asyncio.create_task(Standby(database, Seat()).wait(stop))
    await asyncio.sleep(0.1)
    stop.set()
    assert await waiting is None
    assert database.looks == 1
