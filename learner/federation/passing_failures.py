"""What a federation waits out, and what ends it: a full disk, a lost scheduler or a journal that somebody took away
passes, a defect does not."""

import asyncio
from collections.abc import Iterator

from parlmesh.errors import FleetError, Unavailable
from parlmesh.rpc import Backoff
from parlmesh.telemetry import get_logger

from . import metrics
from .journal import LOST

log = get_logger("parlmesh.learner")

_LONGEST = 300
# Between two tries; the longest pause is also the longest that a cause that has gone is waited for.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.2, 5.0


def passing(error: BaseException) -> str:
    """One sentence on a cause that can go away by itself; empty when it is the federation's own fault."""
    causes = list(_leaves(error))
    return sentence_of(causes[0]) if causes and all(map(_passes, causes)) else ""


def sentence_of(error: BaseException) -> str:
    """For people."""
    if isinstance(error, FleetError):
        return error.message[:_LONGEST]
    if isinstance(error, OSError) and error.strerror:
        return f"the learner's disk: {error.strerror}"[:_LONGEST]
    return f"{type(error).__name__}: {error}"[:_LONGEST]


def _passes(cause: BaseException) -> bool:
    lost = isinstance(cause, FleetError) and cause.reason == LOST
    return lost or isinstance(cause, (OSError, MemoryError, Unavailable))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


class Trouble:
    """What one federation waits for at present; a cause that lasts is said and counted once."""

    def __init__(self, federation_id: str) -> None:
        self._federation_id = federation_id
        self._backoff = Backoff(first=_SHORTEST_SECONDS, limit=_LONGEST_SECONDS)
        self.paused = ""
        """Why it does not go on; empty while it does."""
        self.obstacle = ""
        """Why the scheduler takes none of its tasks; what it refuses today it may take tomorrow."""

    @property
    def sentence(self) -> str:
        """For people; empty while it goes on."""
        return self.paused or self.obstacle

    def pause(self, cause: str) -> None:
        """It does not go on."""
        if self.paused != cause:
            log.warning("federation_paused", federation_id=self._federation_id, cause=cause)
            metrics.PAUSES.inc()
        self.paused = cause

    async def wait_out(self, cause: str) -> None:
        """It does not go on before the next try."""
        self.pause(cause)
        await asyncio.sleep(_SHORTEST_SECONDS + self._backoff.next())

    def clear(self) -> None:
        """It goes on."""
        if self.paused:
            log.info("federation_goes_on", federation_id=self._federation_id)
        self.paused = ""

    def note_obstacle(self, obstacle: str) -> None:
        """What the scheduler said last."""
        self.obstacle = obstacle
