"""Updates of several nodes on one stream: told apart by their headers, each answered with a receipt."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from parlmesh.errors import FleetError, InvalidInput, Unavailable
from parlmesh.limits import PARTS
from parlmesh.rpc import status_from_error
from parlmesh.security import Identity
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import UPDATE_DATA, UPDATE_PART, chunk_from_wire

from ..federations import Federations
from ..messages import about_from_proto, offer_from_proto
from .update_intake import OpenUpdate

_PARTS_AT_ONCE = 16

_M = TypeVar("_M", pb.SubmitUpdateRequest, pb.SubmitUpdatesRequest)


class UpdateStream:
    """One call of SubmitUpdates."""

    def __init__(self, federations: Federations, caller: Identity) -> None:
        self._federations = federations
        self._caller = caller
        # None between updates, and while the data of a refused one passes.
        self._arrival: OpenUpdate | None = None
        self._receipts: list[pb.UpdateReceipt] = []

    async def take(self, message: bytes) -> Sequence[pb.UpdateReceipt]:
        """Takes an encoded SubmitUpdatesRequest; returns the receipts of all updates that ended in it."""
        part = chunk_from_wire(UPDATE_PART, message)
        data = None if part is None else chunk_from_wire(UPDATE_DATA, part)
        if data is not None:
            self._feed([data])
        else:
            parts = parsed(pb.SubmitUpdatesRequest, message).parts
            PARTS.check(len(parts))
            for number, each in enumerate(parts, 1):
                if number % _PARTS_AT_ONCE == 0:
                    # Headers cost their sender nothing, so the event loop gets a turn from time to time.
                    await asyncio.sleep(0)
                if each.HasField("header"):
                    await self._begin(each.header)
                self._feed(data_of(each))
        receipts, self._receipts = self._receipts, []
        return receipts

    def break_off(self) -> None:
        """Ends the update in progress: the stream has ended."""
        if self._arrival is not None:
            self._arrival.break_off()

    async def _begin(self, header: pb.UpdateHeader) -> None:
        if self._arrival is not None:
            self._end(self._arrival.break_off())
        try:
            federation = self._federations.get(header.federation_id)
            offer, about = offer_from_proto(header), about_from_proto(header)
            await federation.ready()
            self._arrival = federation.intake.open(offer, about, self._caller)
        except FleetError as error:
            self._end(error)

    def _feed(self, parts: Sequence[memoryview]) -> None:
        arrival = self._arrival
        if arrival is None:
            return
        try:
            for data in parts:
                arrival.take(data)
            if arrival.missing <= 0:
                arrival.finish()
                self._receipts.append(pb.UpdateReceipt(round=arrival.round))
                self._arrival = None
        except FleetError as error:
            self._end(error)

    def _end(self, error: FleetError) -> None:
        self._arrival = None
        if isinstance(error, Unavailable):
            # This is no refusal: the client is to try again.
            raise error
        self._receipts.append(pb.UpdateReceipt(status=status_from_error(error)))


def data_of(request: pb.SubmitUpdateRequest) -> list[memoryview]:
    """All data in a request, in tensors (as written by hand) or not."""
    return [memoryview(data) for data in (*(tensor.data for tensor in request.tensors), request.data) if data]


def parsed(kind: type[_M], message: bytes) -> _M:
    """Parses a message; InvalidInput when the bytes are not one."""
    try:
        return kind.FromString(message)
    except Exception as error:
        text = f"a message of {len(message)} bytes cannot be parsed"
        raise InvalidInput(text, reason="MALFORMED_MESSAGE") from error
