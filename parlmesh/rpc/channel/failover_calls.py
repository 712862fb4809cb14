"""Calls of a LeaderChannel: they start once the leader is known, and end when the leader changes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from ..task_group import being_cancelled

T = TypeVar("T")


class Leaders(Protocol):
    """The part of a channel that a call needs."""

    async def leader(self, seconds: float | None) -> int: ...

    def enter(self, call: "LeaderCall") -> None: ...

    def leave(self, call: "LeaderCall") -> None: ...

    def mistrust(self, index: int, error: grpc.aio.AioRpcError) -> bool: ...


class Opened(Protocol):
    """One method of each server, by its index."""

    def __getitem__(self, index: int) -> Callable[..., Any]: ...


def refused(details: str) -> grpc.aio.AioRpcError:
    """The error that a server that is away would cause."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, details=details)


class LeaderCall:
    """One call to the leader."""

    def __init__(
        self,
        leaders: Leaders,
        open_each: Opened,
        arguments: Sequence[Any],
        options: Mapping[str, Any],
    ) -> None:
        self._leaders = leaders
        self._open_each = open_each
        self._arguments, self._options = arguments, dict(options)
        self._call: Any = None
        self._opening = asyncio.Lock()
        self._moved_to = ""
        self._cancelled = False
        # Whether the server said that it does not lead.
        self._misdirected = False
        self.index: int | None = None

    def move(self, address: str) -> None:
        """Ends the call because another server leads."""
        self._moved_to = address
        if self._call is not None:
            self._call.cancel()

    def cancel(self) -> bool:
        self._cancelled = True
        self._leaders.leave(self)
        return bool(self._call.cancel()) if self._call is not None else True

    def done(self) -> bool:
        return bool(self._call.done()) if self._call is not None else self._cancelled

    async def code(self) -> Any:
        return await (await self._opened()).code()

    async def details(self) -> Any:
        return await (await self._opened()).details()

    async def initial_metadata(self) -> Any:
        return await self._guarded(lambda call: call.initial_metadata())

    async def trailing_metadata(self) -> Any:
        return await self._guarded(lambda call: call.trailing_metadata())

    async def wait_for_connection(self) -> None:
        await self._guarded(lambda call: call.wait_for_connection())

    async def _opened(self) -> Any:
        async with self._opening:
            if self._call is None:
                if self._cancelled:
                    raise asyncio.CancelledError
                await self._open()
            return self._call

    async def _open(self) -> None:
        self.index = await self._leaders.leader(self._options.get("timeout"))
        self._call = self._open_each[self.index](*self._arguments, **self._options)
        self._leaders.enter(self)
        self._call.add_done_callback(lambda _: self._leaders.leave(self))

    async def _guarded(self, operate: Callable[[Any], Awaitable[T]]) -> T:
        """Reports a call that ended for another leader as a broken connection, not as a cancellation."""
        try:
            return await operate(await self._opened())
        except asyncio.CancelledError:
            if not self._moved_to or being_cancelled():
                raise
            raise refused(f"another scheduler leads, at {self._moved_to}") from None
        except grpc.aio.AioRpcError as error:
            if self._moved_to and error.code() is grpc.StatusCode.CANCELLED:
                raise refused(f"another scheduler leads, at {self._moved_to}") from None
            self._misdirected = self.index is not None and self._leaders.mistrust(self.index, error)
            raise


class UnaryCall(LeaderCall):
    """One message each way. A server that says it does not lead has done nothing, so the leader is asked instead."""

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        loop, seconds = asyncio.get_running_loop(), self._options.get("timeout")
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            try:
                return await self._guarded(_answered)
            except grpc.aio.AioRpcError:
                if not self._misdirected or (deadline is not None and loop.time() >= deadline):
                    raise
            # A server that reports SERVING and does not lead is about to notice.
            await asyncio.sleep(0.05)
            if deadline is not None:
                self._options["timeout"] = max(0.0, deadline - loop.time())
            self._call, self.index, self._misdirected = None, None, False


class StreamCall(LeaderCall):
    """Several messages in either direction, or in both."""

    async def read(self) -> Any:
        return await self._guarded(lambda call: call.read())

    async def write(self, request: Any) -> None:
        await self._guarded(lambda call: call.write(request))

    async def done_writing(self) -> None:
        await self._guarded(lambda call: call.done_writing())

    def __await__(self) -> Generator[Any, None, Any]:
        return self._guarded(_answered).__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message


async def _answered(call: Any) -> Any:
    return await call
