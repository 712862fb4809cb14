"""Logs failed attempts, each kind of failure only from time to time: a fleet that fails fast must not fill a disk."""

import time
from collections.abc import Callable

from parlmesh.exception_text import first_line, frames_of
from parlmesh.telemetry import get_logger
from parlmesh.v1.fleet_service_pb2 import Lease
from parlmesh.v1.task_pb2 import Failure

log = get_logger("parlmesh.actor")

_SECONDS = 10.0
_MOST_KINDS = 256


class FailureLog:
    """Logs the first failure of a kind and reason immediately, and only counts those of the next seconds."""

    def __init__(self, actor_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._actor_id = actor_id
        self._clock = clock
        # When each was last logged, and how many were left out since.
        self._written: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, kind: str, lease: Lease, failure: Failure) -> None:
        """Logs or counts one failed attempt."""
        key, now = (kind, failure.reason), self._clock()
        last, left_out = self._written.get(key, (now - _SECONDS, 0))
        if now - last < _SECONDS:
            self._written[key] = (last, left_out + 1)
            return
        if len(self._written) >= _MOST_KINDS:
            self._written.clear()
        self._written[key] = (now, 0)
        log.warning(
            "task_failed",
            actor_id=self._actor_id,
            kind=kind,
            task_id=lease.task_id,
            attempt=lease.attempt,
            reason=failure.reason,
            message=first_line(failure.message),
            retryable=failure.retryable,
            frames=frames_of(failure.message).splitlines(),
            left_out=left_out,
        )
