"""The background work of handlers between tasks, from the actor's start to its end."""

import asyncio
from collections.abc import Iterable
from types import TracebackType

from parlmesh.exception_text import sentence_at
from parlmesh.handlers import Attending, Handler
from parlmesh.telemetry import get_logger

_AGAIN_SECONDS = 5.0

log = get_logger("parlmesh.actor")


class Attendance:
    """A context manager that owns the background work."""

    def __init__(self, node_id: str, handlers: Iterable[Handler]) -> None:
        self._node_id = node_id
        self._handlers = [handler for handler in handlers if isinstance(handler, Attending)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Attendance":
        self._tasks = [asyncio.create_task(self._attended(handler)) for handler in self._handlers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_AGAIN_SECONDS)

    async def _attended(self, handler: Attending) -> None:
        while True:
            try:
                await handler.attend(self._node_id)
                return
            except Exception as error:
                log.error("attendance_failed", node_id=self._node_id, error=sentence_at(error))
            await asyncio.sleep(_AGAIN_SECONDS)
