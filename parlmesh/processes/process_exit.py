"""A started process that any event loop can wait for.

Event loops differ in how they start processes: uvloop forks and runs gRPC's fork handlers in the child, which crash
during calls. `subprocess` does not, so it starts processes here, and the kernel's process descriptor reports their end.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import BinaryIO

_LOOK_SECONDS = 0.02


class Process:
    """A process that starts on construction."""

    def __init__(self, command: Sequence[str], *, output: BinaryIO, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - the command is the supervisor's own
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            # Ctrl-C in the terminal reaches only the supervisor, and a session can be killed as a whole.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing if the process has ended."""
        self._process.send_signal(number)

    def poll(self) -> int | None:
        """The return code, or None while it runs."""
        return self._process.poll()

    def reap(self) -> int:
        """Waits for a killed process without an event loop; returns the return code."""
        return self._process.wait()

    async def wait(self) -> int:
        """Waits for the return code, negative after a signal. No deadline; cancelling it leaves the process running."""
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
