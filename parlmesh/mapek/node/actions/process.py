"""Stops a process and starts it again."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import FailedPrecondition, NotFound

from ..settings import NodeConfig
from .action import Done, text_of

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
_STAYS_SECONDS = 0.5


class RestartProcess:
    """Parameters: name, as the system lists it. The operator's settings say how to start it again."""

    kind = "restart_process"

    def target(self, parameters: Mapping[str, Any]) -> str:
        """The process's name."""
        return text_of(parameters, "name", self.kind)

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Stops every process of that name, then starts it if the operator's settings say how."""
        name = self.target(parameters)
        arguments = settings.processes.get(name)
        ended = await asyncio.to_thread(_ended, name)
        if arguments is None:
            if not ended:
                raise NotFound(f"there is no process {name!r}, and no line under processes says how to start it")
            return Done(f"{ended} processes {name} were ended")
        try:
            # Its own session lets it outlive the actor.
            child = await asyncio.to_thread(
                subprocess.Popen,
                list(arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise FailedPrecondition(f"{arguments[0]} cannot be started: {error.strerror}") from error
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = await asyncio.to_thread(child.wait, _STAYS_SECONDS)
            raise FailedPrecondition(f"{arguments[0]} was started and ended immediately with exit code {code}")
        return Done(f"{ended} processes {name} were ended and {child.pid} was started")

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Not possible: a restart cannot be undone."""
        raise FailedPrecondition("a restart cannot be undone", reason="NO_UNDO")


def _ended(name: str) -> int:
    import psutil

    found = [each for each in psutil.process_iter(["name"]) if each.info["name"] == name and each.pid != os.getpid()]
    for process in found:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied as error:
            raise FailedPrecondition(f"process {process.pid} {name} may not be ended by this user") from error
    _, alive = psutil.wait_procs(found, timeout=GRACE_SECONDS)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)
    return len(found)
