"""The process of one slot, for handlers that must be killable. Talks to `slot_child` in length-prefixed messages."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process

from parlmesh.blobs import Blobs
from parlmesh.function_tasks import source_of
from parlmesh.handlers import Handler, HandlerError
from parlmesh.v1.fleet_service_pb2 import Assignment, TaskResult
from parlmesh.v1.task_pb2 import Payload

from .attempt_results import ACTOR_LOST
from .slot_child import HEADER_BYTES, frame, length_of

_CHILD = f"{__package__}.slot_child"
# Longest time from the closing of a process's pipe to its end.
_END_SECONDS = 2.0


class SlotProcess:
    """Runs the attempts of one handler, one at a time, in a process that is started when it is needed."""

    def __init__(self, handler: Handler, *, actor_id: str, slot: int, blobs: Blobs) -> None:
        self._kind = handler.kind
        self._source = source_of(handler)
        self._arguments = (actor_id, str(slot))
        self._blobs = blobs
        self._told: tuple[str, ...] = ()
        self._process: Process | None = None
        self._killed: Process | None = None

    async def run(self, assignment: Assignment) -> Payload:
        """The answer of the handler; HandlerError when it failed or its process died."""
        process = await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(assignment.SerializeToString()))
            await process.stdin.drain()
            header = await process.stdout.readexactly(HEADER_BYTES)
            result = TaskResult.FromString(await process.stdout.readexactly(length_of(header)))
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            code = await self._end_of(process)
            text = f"the process of handler {self._kind} {_ending(code)}"
            raise HandlerError(text, retryable=True, reason=ACTOR_LOST) from error
        if result.HasField("failure"):
            failure = result.failure
            raise HandlerError(failure.message, retryable=failure.retryable, reason=failure.reason)
        return result.result

    def kill(self) -> None:
        """Kills the process; the next attempt starts another."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            self._killed = process

    async def ended(self) -> None:
        """Waits until a killed process has ended."""
        if self._killed is not None:
            await self._killed.wait()

    async def _end_of(self, process: Process) -> int:
        """The exit code of a process that has closed its pipe. Killing one that is just ending would hide its code."""
        try:
            async with asyncio.timeout(_END_SECONDS):
                return await process.wait()
        except TimeoutError:
            self.kill()
            return await process.wait()

    async def _started(self) -> Process:
        if self._told != self._blobs.told:
            self.kill()
        if self._process is None or self._process.returncode is not None:
            self._told = self._blobs.told
            # The child finds the same modules as this process, wherever it was started from.
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
            arguments = (self._source, *self._arguments, *self._told)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _CHILD, *arguments, stdin=PIPE, stdout=PIPE, env=environment
            )
        return self._process


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
