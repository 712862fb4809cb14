"""FleetService over gRPC: one stream per actor, whose reader and writer never wait for each other."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import unquote

from google.protobuf.message import DecodeError

from parlmesh.addresses import host_of
from parlmesh.errors import InvalidInput, PermissionDenied
from parlmesh.rpc import caller
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.security import ANYONE
from parlmesh.v1 import fleet_service_pb2 as fleet_pb

from ..core.actors.actor_sessions import Hello
from ..shell import Shell
from . import messages
from .leader_redirect import Seat

Context = Any


class FleetServicer:
    """The service that actors call."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    @property
    def service(self) -> Service:
        """The service that the server registers."""
        encoded = ("Connect",)
        return service_of(fleet_pb.DESCRIPTOR, "FleetService", self, reads_encoded=encoded, writes_encoded=encoded)

    async def Connect(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Reads encoded ConnectRequests and writes encoded ConnectResponses."""
        first = await anext(aiter(requests), None)
        if first is None:
            return
        # Kept for the whole stream: its session belongs to this shell, whichever scheduler leads when it ends.
        shell = self._seat.shell
        session = shell.next_session()
        outbox = shell.connect(_hello(first, session, host_of(unquote(context.peer()))), first)
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(outbox.write_to(context))
                async for request in requests:
                    _receive(shell, session, request)
                    if outbox.closed:
                        # Nothing more is taken from the actor until it has read why.
                        shell.disconnect(session)
                        await writer
                # The actor closed its side normally and reads no more.
                writer.cancel()
        finally:
            shell.disconnect(session)


def _receive(shell: Shell, session: int, request: bytes) -> None:
    """Takes one message; a bad one ends the stream and counts against its node."""
    try:
        shell.receive(session, request)
    except DecodeError:
        error = InvalidInput(f"a message of {len(request)} bytes cannot be parsed", reason="MALFORMED_MESSAGE")
        shell.strike(session, error)
        raise error from None
    except InvalidInput as error:
        shell.strike(session, error)
        raise


def _hello(data: bytes, session: int, host: str) -> Hello:
    request = fleet_pb.ConnectRequest.FromString(data)
    if not request.HasField("hello"):
        raise InvalidInput("the first message of Connect has no hello", reason="MISSING_HELLO")
    node_id = request.hello.node_id
    if not caller().speaks_for(node_id):
        raise PermissionDenied(
            f'"{caller().name}" may not speak for node "{node_id}"', reason="WRONG_NODE", node_id=node_id
        )
    # An operator may speak for any node, but its own certificate says nothing about that node.
    attested = caller().labels if caller().name == node_id else ()
    hello = messages.hello_from_proto(request, session)
    return hello._replace(proven=caller() is not ANYONE, attested=attested, host=host)
