"""Keeps the open streams and their callers, and ends those whose caller is no longer allowed."""

import asyncio
from typing import Any

from parlmesh.errors import Unauthenticated
from parlmesh.security import Identity
from parlmesh.security.authorisation import Guard
from parlmesh.telemetry import get_logger

LOOK_AGAIN_SECONDS = 1.0

audit = get_logger("parlmesh.audit")


class OpenStreams:
    """Each stream is known by the task that serves it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._streams: dict[asyncio.Task[Any], tuple[Identity, str]] = {}
        self._ended: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: asyncio.Task[Any], identity: Identity, method: str) -> None:
        """The stream counts until its task ends."""
        self._streams[task] = (identity, method)
        task.add_done_callback(self._forget)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look)

    def was_ended(self) -> Unauthenticated | None:
        """The reason why this task's stream was cancelled, if its caller lost the right to it."""
        task = asyncio.current_task()
        if task not in self._ended:
            return None
        return Unauthenticated("the credential that opened this stream is no longer valid", reason="REVOKED")

    def _look(self) -> None:
        self._timer = None
        valid: dict[str, bool] = {}
        for task, (identity, method) in list(self._streams.items()):
            if identity.proof not in valid:
                valid[identity.proof] = self._guard.still_admits(identity)
            if not valid[identity.proof] and task not in self._ended:
                audit.warning("stream_ended", method=method, identity=identity, reason="revoked")
                self._ended.add(task)
                task.cancel()
        if self._streams:
            self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._look)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._streams.pop(task, None)
        self._ended.discard(task)
