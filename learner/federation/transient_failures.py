"""Failures that a federation waits out: a full disk, a lost scheduler or a missing journal is transient, a defect is
not."""

import asyncio
from collections.abc import Iterator

from parlmesh.errors import FleetError, Unavailable
from parlmesh.rpc import Backoff
from parlmesh.telemetry import get_logger

from . import metrics
from .journal import LOST

log = get_logger("parlmesh.learner")

_LONGEST = 300
# Between two tries. A federation notices within the longest pause that a cause has gone.
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.2, 5.0


def passing(error: BaseException) -> str:
    """One sentence on a transient cause; empty if it is the federation's own fault."""
    causes = list(_leaves(error))
    return sentence_of(causes[0]) if causes and all(map(_passes, causes)) else ""


def sentence_of(error: BaseException) -> str:
    """An error as one readable sentence."""
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


class Obstacle:
    """The cause that one federation currently waits for; a lasting cause is logged and counted once."""

    def __init__(self, federation_id: str) -> None:
        self._federation_id = federation_id
        self._backoff = Backoff(first=_SHORTEST_SECONDS, limit=_LONGEST_SECONDS)
        self.paused = ""
        """Why it is paused; empty while it is not."""
        self.refusal = ""
        """Why the scheduler accepts none of its tasks; it may accept them later."""

    @property
    def sentence(self) -> str:
        """The cause, to be shown; empty while the federation makes progress."""
        return self.paused or self.refusal

    def pause(self, cause: str) -> None:
        """Marks the federation as paused."""
        if self.paused != cause:
            log.warning("federation_paused", federation_id=self._federation_id, cause=cause)
            metrics.PAUSES.inc()
        self.paused = cause

    async def wait_out(self, cause: str) -> None:
        """Pauses until the next try."""
        self.pause(cause)
        await asyncio.sleep(_SHORTEST_SECONDS + self._backoff.next())

    def clear(self) -> None:
        """Ends the pause."""
        if self.paused:
            log.info("federation_goes_on", federation_id=self._federation_id)
        self.paused = ""

    def note_refusal(self, refusal: str) -> None:
        """Remembers the scheduler's last answer."""
        self.refusal = refusal
