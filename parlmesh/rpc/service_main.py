"""Runs a service's coroutine and turns its end into the process's exit code."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from parlmesh.exit_codes import EXIT_CONFIGURATION, EXIT_OK, EXIT_OTHER, PARENT_ENDED, exit_code
from parlmesh.harmless_text import visible
from parlmesh.optional_packages import missing_extra
from parlmesh.telemetry import get_logger
from parlmesh.telemetry.stack_dump import answer_signal

from .error_statuses import fleet_error_in
from .event_loop import loop_factory

log = get_logger("parlmesh.service")


def run_service(main: Callable[[asyncio.Event], Coroutine[Any, Any, Any]]) -> int:
    """Runs `main(stop)`; SIGTERM and SIGINT set `stop`, a second one cancels. The result is the exit code.

    PARENT_ENDED sets `stop` and never cancels: the kernel sends it as each thread of the parent ends.
    """
    keep_files_private()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_supervised(main))
    except asyncio.CancelledError:
        sys.stderr.write("error: stopped by a second signal before the drain was over\n")
        return EXIT_OTHER
    except Exception as error:
        sentence = _of_a_path(error)
        if sentence:
            sys.stderr.write(f"error: {sentence}\n")
            return EXIT_OTHER
        absent = missing_extra(_only(error))
        if absent:
            sys.stderr.write(f"error: {absent}\n")
            return EXIT_CONFIGURATION
        known = fleet_error_in(error)
        if known is None:
            log.exception("service_failed", error)
            return EXIT_OTHER
        sys.stderr.write(f"error: {visible(known.message)}\n")
        return exit_code(known)
    return EXIT_OK


def _only(error: BaseException) -> BaseException:
    """The one exception that a group holds."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _of_a_path(error: BaseException) -> str:
    """A sentence about the operator's folder, disk or file, if a traceback would add nothing. Empty = a defect."""
    error = _only(error)
    if not isinstance(error, OSError):
        return ""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    # Raised with a sentence instead of a number, as stores do.
    return str(error) if error.errno is None else ""


def keep_files_private() -> None:
    """Keeps other users from reading this process's files, whatever umask it was started with: 0640, folders 0750."""
    os.umask(os.umask(0o077) | 0o027)


async def _supervised(main: Callable[[asyncio.Event], Coroutine[Any, Any, Any]]) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(PARENT_ENDED) != signal.SIG_IGN:  # as under nohup
        loop.add_signal_handler(PARENT_ENDED, stop.set)
    answer_signal(loop)
    await main(stop)
