"""The thread of one slot. It can be left behind when its handler does not stop; it cannot be killed."""

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

from parlmesh.handlers import Tail
from parlmesh.v1.task_pb2 import Payload

_Call: TypeAlias = tuple[Callable[[], Payload | Tail], "asyncio.Future[Payload | Tail]"]


class SlotThread:
    """Runs calls one after another and delivers their ends to the event loop that made it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        # A daemon: a handler that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], Payload | Tail]) -> "asyncio.Future[Payload | Tail]":
        """Runs `call` after those submitted before."""
        future = self._loop.create_future()
        self._inbox.put((call, future))
        return future

    def retire(self) -> None:
        """Ends the thread once its present call returns; does not wait for it."""
        self._inbox.put(None)

    def _serve(self) -> None:
        while (item := self._inbox.get()) is not None:
            call, future = item
            answer: Payload | Tail | None = None
            failure: BaseException | None = None
            try:
                answer = call()
            except BaseException as error:  # whatever it is, it ends the attempt and not the thread
                failure = error
            try:
                self._loop.call_soon_threadsafe(_deliver, future, answer, failure)
            except RuntimeError:  # the loop is closed: the process is ending and nobody waits
                return
            del call, future, answer, failure, item


def _deliver(
    future: "asyncio.Future[Payload | Tail]", answer: Payload | Tail | None, failure: BaseException | None
) -> None:
    if future.done():
        return
    if failure is None:
        assert answer is not None
        future.set_result(answer)
    elif isinstance(failure, StopIteration):  # a future refuses it
        substitute = RuntimeError("StopIteration")
        substitute.__cause__ = failure
        future.set_exception(substitute)
    else:
        future.set_exception(failure)
