"""Keeps this machine's cores awake for some seconds after activity.

A sleeping core takes time to wake up, and the round trip of one task wakes cores about eight times. Linux lets a
process that holds a file open ask for less sleep (PM QoS, which cyclictest uses too). That costs power, and speed on
cores with two threads, so it is held only during activity.
"""

import asyncio
import os
from pathlib import Path

from parlmesh.errors import ConfigError

DEVICE = Path("/dev/cpu_dma_latency")
# The longest acceptable wake-up time in microseconds, in the kernel's format.
_NO_SLEEP = bytes(4)


class Wakefulness:
    """Used on the running loop from the first `touch` to `close`; does nothing with 0 seconds."""

    def __init__(self, seconds: float, device: Path = DEVICE) -> None:
        self._seconds = seconds
        self._device = device
        self._file: int | None = None
        self._touched = False
        self._timer: asyncio.TimerHandle | None = None
        if seconds:
            self._check()

    @property
    def holds(self) -> bool:
        """Whether the cores are being kept awake."""
        return self._file is not None

    def touch(self) -> None:
        """Reports activity."""
        self._touched = True
        if self._file is None and self._seconds:
            self._file = self._open()
            self._look()

    def close(self) -> None:
        """Lets the cores sleep."""
        if self._timer is not None:
            self._timer.cancel()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _look(self) -> None:
        if not self._touched:
            self.close()
            return
        self._touched = False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _check(self) -> None:
        try:
            os.close(self._open())
        except OSError as error:
            raise ConfigError(
                f"awake_seconds is {self._seconds:g}, which needs write access to {self._device}: "
                f"{(error.strerror or str(error)).lower()}",
                path=str(self._device),
            ) from None

    def _open(self) -> int:
        file = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
        os.write(file, _NO_SLEEP)
        return file
