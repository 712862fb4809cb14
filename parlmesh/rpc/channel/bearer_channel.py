"""A channel that authenticates every call."""

from collections.abc import Callable
from typing import Any, Self

import grpc
import grpc.aio

from ..credentials import Bearer


class BearerChannel(grpc.aio.Channel):
    """A channel that adds the credential to every call, and nothing to any message.

    grpc's own call credentials hand every call to another thread and refuse loopback without TLS.
    """

    def __init__(self, channel: grpc.aio.Channel, bearer: Bearer) -> None:
        self._channel = channel
        self._bearer = bearer

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._channel.__aexit__(*error)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._authorized(method, self._channel.unary_unary(method, *arguments, **options))

    def unary_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._authorized(method, self._channel.unary_stream(method, *arguments, **options))

    def stream_unary(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._authorized(method, self._channel.stream_unary(method, *arguments, **options))

    def stream_stream(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._authorized(method, self._channel.stream_stream(method, *arguments, **options))

    def _authorized(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        service = method.removeprefix("/").partition("/")[0]

        def authorized(*arguments: Any, metadata: Any = None, **options: Any) -> Any:
            credential = ("authorization", f"Bearer {self._bearer(service)}")
            return call(*arguments, metadata=(*(metadata or ()), credential), **options)

        return authorized
