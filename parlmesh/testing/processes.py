"""Real processes under test: started, watched through their log events, killed, never left behind."""

import asyncio
import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_POLL_SECONDS = 0.01
_LOOK_SECONDS = 0.5
_REST_SECONDS = 5.0
"""How long to wait for the last lines of an ended process: its children may still hold the other end."""
_MOST_LINES = 10_000


def wait_until(predicate: Callable[[], Any], deadline_seconds: float, *, poll_seconds: float = _POLL_SECONDS) -> Any:
    """Polls until the predicate returns something true, and returns it; fails at the deadline."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        found = predicate()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"{_name(predicate)} did not hold within {deadline_seconds} s")
        time.sleep(poll_seconds)


async def wait_until_async(predicate: Callable[[], Any], deadline_seconds: float) -> Any:
    """`wait_until` without blocking the event loop; the predicate may be a coroutine function."""
    deadline = time.monotonic() + deadline_seconds
    while True:
        found = predicate()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"{_name(predicate)} did not hold within {deadline_seconds} s")
        await asyncio.sleep(_POLL_SECONDS)


class Process:
    """`python -m <module>` with its stderr kept line by line; killed at the end of the `with` block."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._lines: collections.deque[str] = collections.deque(maxlen=_MOST_LINES)
        self._read_lines = 0
        self._changed = threading.Condition()
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"stderr of {module}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lines(self) -> Sequence[str]:
        """The last lines of stderr."""
        return list(self._lines)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The JSON log lines so far, all of them or those of one event."""
        found = [event for event in map(_parsed, self.lines) if event is not None]
        return [event for event in found if name is None or event.get("event") == name]

    def wait_for(self, event: str, deadline_seconds: float = 60.0, **fields: object) -> dict[str, Any]:
        """Waits for the first log line of that event with these field values."""
        deadline, looked_at, ended = time.monotonic() + deadline_seconds, 0, False
        while True:
            with self._changed:
                if not ended and self._read_lines == looked_at:
                    self._changed.wait(_LOOK_SECONDS)
                fresh = min(self._read_lines - looked_at, len(self._lines))
                lines, looked_at = list(self._lines)[len(self._lines) - fresh :], self._read_lines
            for line in filter(None, map(_parsed, lines)):
                if line.get("event") == event and all(line.get(name) == value for name, value in fields.items()):
                    return line
            if ended:
                code = self._process.returncode
                raise AssertionError(f"{self} ended with {code} before {event} {fields}:{self._tail()}")
            if not self.running:
                self._reader.join(_REST_SECONDS)
                ended = True
            elif time.monotonic() >= deadline:
                raise AssertionError(f"{self} did not log {event} {fields} in {deadline_seconds} s:{self._tail()}")

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Sends SIGINT, like Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def signal(self, number: signal.Signals) -> None:
        """Sends any other signal, such as SIGSTOP and SIGCONT."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        self._process.kill()
        self.wait()

    def wait(self, deadline_seconds: float = 60.0) -> int:
        """Waits for the end; returns the exit code, -9 after a kill."""
        try:
            code = self._process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} still runs after {deadline_seconds} s:{self._tail()}") from None
        self._reader.join(_REST_SECONDS)
        return code

    def assert_exits(self, code: int, deadline_seconds: float = 60.0) -> None:
        found = self.wait(deadline_seconds)
        assert found == code, f"{self} ended with {found}, not {code}:{self._tail()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.running:
            self._process.kill()
        self._process.wait(60.0)
        self._reader.join(_REST_SECONDS)
        # Closing this end would block while a leftover child holds the other one.
        if self._process.stderr is not None and not self._reader.is_alive():
            self._process.stderr.close()

    def __str__(self) -> str:
        return " ".join(self._command[1:])

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._lines.append(line.rstrip("\n"))
                self._read_lines += 1
                self._changed.notify_all()

    def _tail(self) -> str:
        return "\n" + "\n".join(list(self._lines)[-20:])


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _name(predicate: Callable[[], Any]) -> str:
    return getattr(predicate, "__name__", repr(predicate))
