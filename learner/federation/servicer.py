"""FederationService over gRPC: decode, call, encode. Updates and models pass as encoded messages."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput
from parlmesh.rpc import caller
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.downloads import Downloads
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire import struct_from_proto
from parlmesh.wire.chunks import UPDATE_DATA, chunk_from_wire

from ..services.page_tokens import page
from .federations import Federations
from .messages import about_from_proto, federation_to_proto, model_header, offer_from_proto, rounds_to_proto
from .model_versions import StoredModel
from .updates.update_intake import OpenUpdate
from .updates.update_stream import UpdateStream, data_of, parsed

Context = grpc.aio.ServicerContext[Any, Any]

_DRAIN_SECONDS = 5.0
# An update that is slower than this, or stops, loses its slot in the spool.
UPDATE_SECONDS, SLOWEST_BYTES_PER_SECOND = 60.0, 64 << 10


class FederationServicer:
    """FederationService."""

    def __init__(self, federations: Federations) -> None:
        self._federations = federations
        self._downloads = Downloads()

    @property
    def service(self) -> Service:
        """The service, ready to be served."""
        return service_of(
            pb.DESCRIPTOR,
            "FederationService",
            self,
            # Streams carry large messages, which their methods read and write without protobuf.
            reads_encoded=("SubmitUpdate", "SubmitUpdates"),
            writes_encoded=("SubmitUpdates", "GetFederatedModel", "WatchFederatedModel"),
        )

    async def StartFederation(self, request: pb.StartFederationRequest, context: Context) -> pb.StartFederationResponse:
        federation = await self._federations.start(request.federation_id, struct_from_proto(request.configuration))
        return pb.StartFederationResponse(federation=federation_to_proto(federation))

    async def GetFederation(self, request: pb.GetFederationRequest, context: Context) -> pb.GetFederationResponse:
        return pb.GetFederationResponse(federation=federation_to_proto(self._federations.get(request.federation_id)))

    async def ListFederations(self, request: pb.ListFederationsRequest, context: Context) -> pb.ListFederationsResponse:
        found, token = page(
            self._federations.all(),
            lambda federation: (federation.created, 0, federation.federation_id),
            federation_to_proto,
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListFederationsResponse(federations=found, next_page_token=token)

    async def ListRounds(self, request: pb.ListRoundsRequest, context: Context) -> pb.ListRoundsResponse:
        federation = self._federations.get(request.federation_id)
        return rounds_to_proto(federation.core.history, request.page_size, request.page_token)

    async def StopFederation(self, request: pb.StopFederationRequest, context: Context) -> pb.StopFederationResponse:
        federation = self._federations.get(request.federation_id)
        federation.stop("stopped on request")
        return pb.StopFederationResponse(federation=federation_to_proto(federation))

    async def SubmitUpdate(self, requests: AsyncIterator[bytes], context: Context) -> pb.SubmitUpdateResponse:
        """Reads encoded SubmitUpdateRequests."""
        messages = aiter(requests)
        first = await anext(messages, None)
        if first is None:
            raise InvalidInput("an update has no header", reason="UPDATE_HEADER")
        opening = parsed(pb.SubmitUpdateRequest, first)
        federation = self._federations.get(opening.header.federation_id)
        offer, about = offer_from_proto(opening.header), about_from_proto(opening.header)
        await federation.ready()
        try:
            arrival = federation.intake.open(offer, about, caller())
            seconds = UPDATE_SECONDS + opening.header.size_bytes / SLOWEST_BYTES_PER_SECOND
            try:
                async with asyncio.timeout(seconds):
                    await _feed(arrival, _chunks(opening, messages))
            except TimeoutError:
                text = f"the update did not come within {seconds:g} seconds"
                raise DeadlineExceeded(text, reason="UPDATE_TOO_SLOW") from None
        except FleetError:
            await _drain(messages)
            raise
        return pb.SubmitUpdateResponse(round=arrival.round)

    async def SubmitUpdates(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Reads encoded SubmitUpdatesRequests and writes encoded SubmitUpdatesResponses."""
        stream = UpdateStream(self._federations, caller())
        try:
            async for message in requests:
                if receipts := await stream.take(message):
                    await context.write(pb.SubmitUpdatesResponse(receipts=receipts).SerializeToString())
        finally:
            stream.break_off()

    async def GetFederatedModel(self, request: pb.GetFederatedModelRequest, context: Context) -> None:
        """Writes encoded GetFederatedModelResponses."""
        federation = self._federations.get(request.federation_id)
        async with self._downloads.place(0):
            await _send(context, federation.federation_id, federation.stored(request.version))

    async def WatchFederatedModel(self, request: pb.WatchFederatedModelRequest, context: Context) -> None:
        """Writes encoded WatchFederatedModelResponses."""
        federation = self._federations.get(request.federation_id)
        watcher = federation.watch(request.node_ids, request.have_version)
        try:
            while (model := await watcher.next()) is not None:
                async with self._downloads.place(0):
                    await _send(context, federation.federation_id, model)
        finally:
            federation.watchers.remove(watcher)


async def _send(context: Context, federation_id: str, model: StoredModel) -> None:
    # Both responses have the same layout. Concatenated messages decode as one message, so the header travels with the
    # first chunk.
    before = pb.GetFederatedModelResponse(header=model_header(federation_id, model)).SerializeToString()
    for message in model.encoded():
        await context.write(before + message if before else message)
        before = b""


async def _feed(arrival: OpenUpdate, chunks: AsyncIterator[memoryview]) -> None:
    try:
        async for chunk in chunks:
            arrival.take(chunk)
        arrival.finish()
    finally:
        arrival.break_off()


async def _chunks(opening: pb.SubmitUpdateRequest, messages: AsyncIterator[bytes]) -> AsyncIterator[memoryview]:
    for part in data_of(opening):
        yield part
    async for message in messages:
        data = chunk_from_wire(UPDATE_DATA, message)
        for part in [data] if data is not None else data_of(parsed(pb.SubmitUpdateRequest, message)):
            yield part


async def _drain(messages: AsyncIterator[bytes]) -> None:
    """Reads the client's remaining messages: if its stream closes during a write, it never gets the reason (grpc
    36066)."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in messages:
                pass
    except TimeoutError:
        return
