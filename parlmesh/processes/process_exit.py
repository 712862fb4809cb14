"""A started process that any event loop can wait for.

Loops start processes in ways of their own; uvloop forks and runs gRPC's fork handlers in the child, which crash while
calls are under way. `subprocess` does not, so it starts them here, and the kernel's process descriptor tells the end.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import BinaryIO

_LOOK_SECONDS = 0.02


class Process:
    """Runs from its making on."""

    def __init__(self, command: Sequence[str], *, output: BinaryIO, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the command is the supervisor's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            # The terminal's Ctrl-C is for the supervisor alone, and a session can be ended as a whole.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Nothing happens when it has ended."""
        self._process.send_signal(number)

    def poll(self) -> int | None:
        """The return code, or None while it runs."""
        return self._process.poll()

    def reap(self) -> int:
        """The return code of one that was killed; for whoever has no loop."""
        return self._process.wait()

    async def wait(self) -> int:
        """The return code, negative after a signal; has no deadline, and leaves the process alone when cancelled."""
        if self._process.poll() is None:
            if hasattr(os, "pidfd_open"):
                await _readable(os.pidfd_open(self.pid))
            while self._process.poll() is None:  # noqa: ASYNC110 - only where the kernel has no descriptors
                await asyncio.sleep(_LOOK_SECONDS)
        return self._process.wait()


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
