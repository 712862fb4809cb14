"""The user's settings for a controller."""

import math
from numbers import Real

from pydantic import Field

from parlmesh.config import Config
from parlmesh.errors import InvalidInput

# Ten years; some timers take no longer ones.
_LONGEST_SECONDS = 315_360_000.0


class ClientConfig(Config):
    """Deadlines and bounds of one controller: every wait has a deadline, every buffer a size."""

    submitter: str = Field(default="", max_length=200)
    """Name under which tasks share the queue fairly with those of others; empty = a unique name."""
    connect_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest wait for a scheduler to answer at all."""
    call_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest wait for a submit or any other single call, retries included."""
    wait_seconds: float = Field(default=3600.0, gt=0, le=365 * 86400)
    """Longest wait for outcomes when a call sets no timeout."""
    start_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest wait for a local fleet to be ready."""
    reconnect_seconds: float = Field(default=2.0, gt=0, le=300)
    """Longest pause between two attempts to reach the scheduler again."""
    requests_in_flight: int = Field(default=2, ge=1, le=64)
    """Most requests without a receipt; tasks that become ready in the meantime are put into the next one."""
    tasks_per_request: int = Field(default=2000, ge=1, le=10_000)
    """Most tasks in one request."""
    message_bytes: int = Field(default=1 << 30, ge=64 << 10, le=1 << 30)
    """Largest request; the scheduler announces its own limit (`listen.max_message_bytes`); the lower one applies."""
    blob_bytes: int = Field(default=4 << 30, ge=1 << 20, le=1 << 44)
    """Size of the large arrays kept on this host if it is not the scheduler's; the least recently used are removed
    first."""
    blob_seconds: float = Field(default=300.0, gt=0, le=3600)
    """Longest transfer of one large array from or to the scheduler."""
    unclaimed_outcomes: int = Field(default=100_000, ge=1)
    """Outcomes of `submit_task` and `submit_tasks` kept until `result` asks for them; the oldest are dropped first."""
    unclaimed_bytes: int = Field(default=256 << 20, ge=1)
    """Bytes of such outcomes that are kept."""
    max_workers: int = Field(default=10_000, ge=1, le=100_000)
    """Most workers that `initialize` starts."""


def seconds_in(timeout: object) -> float:
    """A caller's timeout; InvalidInput for what is no number. NaN would spoil the order of the event loop's timers."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or math.isnan(timeout):
        raise InvalidInput(f"timeout is {timeout!r:.60}; it must be a number of seconds", reason="INVALID_TIMEOUT")
    return min(float(timeout), _LONGEST_SECONDS)
