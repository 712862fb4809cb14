"""The coordinator of federations as handlers in threads see it: models in, updates out."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio

from parlmesh.errors import FleetError, Unavailable
from parlmesh.federation.model_file import ModelFile
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import MODEL_DATA, chunk_from_wire

from .arriving_model import ArrivingModel
from .config import LimitsConfig
from .handlers.protocol import Cancelled, Context
from .update_stream import Receipt, Update, UpdateStream

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
_MODELS_KEPT = 2
_SUBMIT = "/parlmesh.v1.FederationService/SubmitUpdates"
_MODEL = "/parlmesh.v1.FederationService/GetFederatedModel"


class FederationLink:
    """One for all nodes of a process: a version is fetched once, however many of them train on it.

    Used as a context manager, which owns the stream of updates.
    """

    def __init__(self, channel: grpc.aio.Channel, limits: LimitsConfig, rng: random.Random) -> None:
        opened: Any = channel.stream_stream(_SUBMIT, response_deserializer=pb.SubmitUpdatesResponse.FromString)
        self._updates = UpdateStream(opened, pause_seconds=limits.reconnect_seconds, rng=rng)
        self._model_call: Any = channel.unary_stream(
            _MODEL, request_serializer=pb.GetFederatedModelRequest.SerializeToString
        )
        self._limits = limits
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._models: OrderedDict[tuple[str, int], asyncio.Future[ModelFile]] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._updates.close()

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

    async def submit(self, updates: Sequence[Update]) -> list[Receipt]:
        """Sends updates until the coordinator has answered each."""
        return await self._updates.submit(updates, self._limits.upload_seconds)

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
