"""The coordinator of federations as handlers in threads see it: models in, updates out."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import grpc.aio

from parlmesh.errors import DeadlineExceeded, FleetError, Unavailable
from parlmesh.federation.model_file import ModelFile
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import MODEL_DATA, UPDATE_DATA, chunk_from_wire, chunk_to_wire

from .arriving_model import ArrivingModel
from .config import LimitsConfig
from .handlers.protocol import Cancelled, Context

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
_MODELS_KEPT = 2
_CHUNK_BYTES = 1 << 19
_SUBMIT = "/parlmesh.v1.FederationService/SubmitUpdate"
_MODEL = "/parlmesh.v1.FederationService/GetFederatedModel"


class FederationLink:
    """One for all workers of a process: a version is fetched once, however many of them train on it."""

    def __init__(self, channel: grpc.aio.Channel, limits: LimitsConfig, rng: random.Random) -> None:
        self._submit_call: Any = channel.stream_unary(_SUBMIT, response_deserializer=pb.SubmitUpdateResponse.FromString)
        self._model_call: Any = channel.unary_stream(
            _MODEL, request_serializer=pb.GetFederatedModelRequest.SerializeToString
        )
        self._limits = limits
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._models: OrderedDict[tuple[str, int], asyncio.Future[ModelFile]] = OrderedDict()

    def model(self, federation_id: str, version: int, context: Context) -> ModelFile:
        """Exactly this version; waits in the calling thread."""
        held = self._models.get((federation_id, version))
        if held is not None and held.done() and not held.cancelled() and held.exception() is None:
            return held.result()
        return self._wait(self.fetch(federation_id, version), context)

    async def fetch(self, federation_id: str, version: int) -> ModelFile:
        """Joins a fetch that is under way."""
        key = (federation_id, version)
        held = self._models.get(key)
        if held is None:
            held = self._models[key] = asyncio.ensure_future(self._fetch(federation_id, version))
            while len(self._models) > _MODELS_KEPT:
                self._models.popitem(last=False)
        try:
            return await asyncio.shield(held)
        except FleetError:
            if self._models.get(key) is held:
                del self._models[key]
            raise

    async def submit(self, header: pb.UpdateHeader, data: bytes | memoryview) -> int:
        """Sends an update until the coordinator has answered; the round it counts in. FleetError when it is refused."""
        first = pb.SubmitUpdateRequest(header=header).SerializeToString()
        deadline = time.monotonic() + self._limits.upload_seconds
        backoff = Backoff(limit=self._limits.reconnect_seconds, rng=self._rng)
        while True:
            left = deadline - time.monotonic()
            try:
                answer = await self._submit_call(_messages(first, memoryview(data).cast("B")), timeout=max(0.001, left))
                return int(answer.round)
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                if not isinstance(error, (Unavailable, DeadlineExceeded)) or time.monotonic() >= deadline:
                    raise error from rpc_error
            # The same update counts once, however often it is sent.
            await asyncio.sleep(backoff.next())

    async def _fetch(self, federation_id: str, version: int) -> ModelFile:
        """Outlives a restart of the coordinator."""
        deadline = time.monotonic() + self._limits.policy_seconds
        backoff = Backoff(limit=self._limits.reconnect_seconds, rng=self._rng)
        while True:
            try:
                return await self._fetch_once(federation_id, version, deadline - time.monotonic())
            except Unavailable:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(backoff.next())

    async def _fetch_once(self, federation_id: str, version: int, seconds: float) -> ModelFile:
        request = pb.GetFederatedModelRequest(federation_id=federation_id, version=version)
        arriving: ArrivingModel | None = None
        call = self._model_call(request, timeout=max(0.001, seconds))
        try:
            async for message in call:
                data = chunk_from_wire(MODEL_DATA, message)
                if data is None:
                    opening = pb.GetFederatedModelResponse.FromString(message)
                    arriving, data = ArrivingModel(opening.header, self._limits.policy_bytes), memoryview(opening.data)
                if arriving is None or not arriving.take(data):
                    break
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            call.cancel()
        found = arriving.whole() if arriving is not None else None
        if found is None:
            raise Unavailable(f"model version {version} of {federation_id!r} came damaged", reason="MODEL_CORRUPT")
        return found

    def _wait(self, work: Coroutine[Any, Any, _T], context: Context) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not wait((future,), _POLL_SECONDS).done:
                context.check()
        except Cancelled:
            future.cancel()
            raise
        return future.result()


async def _messages(first: bytes, data: memoryview) -> AsyncIterator[bytes]:
    # Encoded messages one after another are one message: the header travels with the first chunk.
    yield first + chunk_to_wire(UPDATE_DATA, data[:_CHUNK_BYTES])
    for start in range(_CHUNK_BYTES, len(data), _CHUNK_BYTES):
        yield chunk_to_wire(UPDATE_DATA, data[start : start + _CHUNK_BYTES])
