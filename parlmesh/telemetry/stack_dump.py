"""On SIGUSR1, prints the stack of every thread and what every asyncio task awaits."""

import asyncio
import faulthandler
import signal
import sys
from collections.abc import Iterator
from typing import Any

_MOST_TASKS = 1_000


def answer_signal(loop: asyncio.AbstractEventLoop) -> None:
    """Installs the handler. It prints to stderr and changes nothing; threads are shown even when the loop is stuck."""
    loop.add_signal_handler(signal.SIGUSR1, _print_tasks, loop)
    try:
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
    except (ValueError, OSError, AttributeError):
        # stderr has no descriptor; the tasks are still printed.
        return


def _print_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    for task in tasks[:_MOST_TASKS]:
        places = " > ".join(f"{code.co_filename}:{line} {code.co_qualname}" for code, line in _awaited(task.get_coro()))
        sys.stderr.write(f"task {task.get_name()}: {places}\n")
    if len(tasks) > _MOST_TASKS:
        sys.stderr.write(f"and {len(tasks) - _MOST_TASKS} tasks more\n")
    sys.stderr.flush()


def _awaited(coroutine: Any) -> Iterator[tuple[Any, int]]:
    """Code and line of a coroutine and of the chain of what it awaits."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        frame = frame or getattr(coroutine, "ag_frame", None)
        if frame is None:
            return
        yield frame.f_code, frame.f_lineno
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
            or getattr(coroutine, "ag_await", None)
        )
