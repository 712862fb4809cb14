"""Handlers whose effects are visible outside: each appends to the history when it starts and when it ends."""

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Any

from parlmesh.handlers import Context, HandlerError, RunsIn
from parlmesh.testing.history import Began, Ended, Journal, now
from parlmesh.types import Array

# The file of the effects; set for the actor, inherited by the processes of its slots.
VARIABLE = "FAULTS_EFFECTS"
_LOOK_SECONDS = 0.02


class Mark:
    """The common parameters of all kinds: {seconds, fail_attempts, bytes}."""

    runs_in: RunsIn

    def __init__(self) -> None:
        self._journal = Journal(Path(os.environ[VARIABLE]))

    def _begin(self, context: Context) -> str:
        token = secrets.token_hex(8)
        inline = self.runs_in is RunsIn.INLINE
        self._journal.add(Began(context.task_id, context.attempt, context.actor_id, token, now(), inline))
        return token

    def _end(self, token: str, parameters: dict[str, Any], context: Context) -> dict[str, Any]:
        if context.attempt <= parameters.get("fail_attempts", 0):
            self._journal.add(Ended(token, now(), "failed"))
            raise HandlerError("as the schedule wishes", retryable=True)
        self._journal.add(Ended(token, now(), "succeeded"))
        return {"token": token, "filling": "x" * int(parameters.get("bytes", 0))}


class MarkInline(Mark):
    """Runs on the loop, immediately."""

    kind = "mark_inline"
    runs_in = RunsIn.INLINE

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> dict[str, Any]:
        return self._end(self._begin(context), parameters, context)


class MarkLoop(Mark):
    """Waits on the loop."""

    kind = "mark_loop"
    runs_in = RunsIn.LOOP

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> dict[str, Any]:
        token = self._begin(context)
        try:
            await asyncio.sleep(parameters.get("seconds", 0.0))
        except asyncio.CancelledError:
            self._journal.add(Ended(token, now(), "stopped"))
            raise
        return self._end(token, parameters, context)


class MarkThread(Mark):
    """Waits in the thread of a slot."""

    kind = "mark_thread"
    runs_in = RunsIn.THREAD

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> dict[str, Any]:
        token, end = self._begin(context), now() + parameters.get("seconds", 0.0)
        while now() < end:
            if context.cancelled:
                self._journal.add(Ended(token, now(), "stopped"))
                context.check()
            time.sleep(min(_LOOK_SECONDS, max(0.0, end - now())))
        return self._end(token, parameters, context)


class MarkProcess(Mark):
    """Waits in the process of a slot."""

    kind = "mark_process"
    runs_in = RunsIn.PROCESS

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> dict[str, Any]:
        token = self._begin(context)
        time.sleep(parameters.get("seconds", 0.0))
        return self._end(token, parameters, context)


KINDS = {kind.kind: f"{__name__}:{kind.__name__}" for kind in (MarkInline, MarkLoop, MarkThread, MarkProcess)}
