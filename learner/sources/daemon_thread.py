"""One thread for code that may never return: it keeps no process from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThread:
    """Runs one function after the other. Unlike an executor's, its thread is not waited for at the end."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """The result to come."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*arguments)))
        return future

    def close(self) -> None:
        """Ends the thread after what it is at."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
            # What a result holds is not kept until the next call.
            del call, future, function
