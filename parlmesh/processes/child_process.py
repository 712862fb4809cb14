"""Starts and ends a child process, and reads its log. Decides nothing about restarts."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import parent_death
from .process_exit import Process

LOG_TAIL_BYTES = 64 * 1024


def spawn(
    command: Sequence[str], log: Path, environment: Mapping[str, str], *, last_signal: int = signal.SIGKILL
) -> Process:
    """Starts `command` in its own session; it gets `last_signal` when this thread ends. Appends stdout and stderr to
    `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    wrapper = [sys.executable, "-I", "-S", str(Path(parent_death.__file__)), str(os.getpid()), str(int(last_signal))]
    with log.open("ab") as output:
        return Process([*wrapper, *command], output=output, environment=environment)


def terminate(process: Process) -> None:
    """Asks for a graceful end."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)


def kill_session(pid: int) -> None:
    """Kills the child and everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_end(return_code: int) -> str:
    """Describes an exit: "exit code 3" or "signal 9 (SIGKILL)"."""
    if return_code >= 0:
        return f"exit code {return_code}"
    try:
        return f"signal {-return_code} ({signal.Signals(-return_code).name})"
    except ValueError:
        return f"signal {-return_code}"


def log_size(log: Path) -> int:
    """The offset at which the next line of a log will start."""
    return log.stat().st_size if log.exists() else 0


def serving_port(log: Path, offset: int) -> int | None:
    """The port in the first "serving" event after `offset`; None while there is none."""
    if not log.exists():
        return None
    with log.open("rb") as lines:
        lines.seek(offset)
        for line in lines:
            event = _event(line)
            if event.get("event") == "serving" and isinstance(event.get("port"), int):
                return int(event["port"])
    return None


def has_served(log: Path, offset: int) -> bool:
    """Whether the process logged a "serving" event after `offset`."""
    if not log.exists():
        return False
    with log.open("rb") as lines:
        lines.seek(offset)
        return any(_event(line).get("event") == "serving" for line in lines)


def last_words(log: Path, offset: int = 0) -> str:
    """The last non-empty line of a log as one readable sentence of at most 300 characters."""
    if not log.exists():
        return ""
    with log.open("rb") as lines:
        lines.seek(max(offset, log.stat().st_size - LOG_TAIL_BYTES))
        tail = [line for line in lines.read().splitlines() if line.strip()]
    if not tail:
        return ""
    event = _event(tail[-1])
    if not event:
        return tail[-1].decode(errors="replace").strip()[:300]
    fields = ", ".join(f"{key}={value}" for key, value in event.items() if key not in _COMMON_FIELDS)
    return f"{event.get('event', '')} {fields}".strip()[:300]


_COMMON_FIELDS = {"event", "time", "level", "service", "logger", "exception"}


def _event(line: bytes) -> dict[str, Any]:
    if not line.startswith(b"{"):
        return {}
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}
