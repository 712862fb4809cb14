"""The federation coordinator as handlers in threads see it: models in, updates out."""

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio

from parlmesh.errors import Unavailable
from parlmesh.federation.model_file import ModelFile
from parlmesh.handlers import Cancelled, Context
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.v1 import federation_service_pb2 as pb

from ..config import LimitsConfig
from .model_downloads import ModelWatch, arriving_models
from .update_uploads import Receipt, Update, UpdateStream

_T = TypeVar("_T")
_POLL_SECONDS = 0.1
_MODELS_KEPT = 2
_SUBMIT = "/parlmesh.v1.FederationService/SubmitUpdates"
_MODEL = "/parlmesh.v1.FederationService/GetFederatedModel"
_WATCH = "/parlmesh.v1.FederationService/WatchFederatedModel"


class FederationLink:
    """Serves all nodes of a process: a version is fetched once, however many of them train on it.

    A context manager that owns the streams. `hosts` are the names that this process's tasks are pinned to.
    """

    def __init__(
        self, channel: grpc.aio.Channel, hosts: Sequence[str], limits: LimitsConfig, rng: random.Random
    ) -> None:
        opened: Any = channel.stream_stream(_SUBMIT, response_deserializer=pb.SubmitUpdatesResponse.FromString)
        self._updates = UpdateStream(opened, pause_seconds=limits.reconnect_seconds, rng=rng)
        self._model_call: Any = channel.unary_stream(
            _MODEL, request_serializer=pb.GetFederatedModelRequest.SerializeToString
        )
        self._watch_call: Any = channel.unary_stream(
            _WATCH, request_serializer=pb.WatchFederatedModelRequest.SerializeToString
        )
        self._hosts = tuple(hosts)
        self._watches: dict[str, ModelWatch] = {}
        self._limits = limits
        self._rng = rng
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._models: OrderedDict[tuple[str, int], asyncio.Future[ModelFile]] = OrderedDict()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed = True
        for watch in self._watches.values():
            await watch.close()
        await self._updates.close()

    def model(self, federation_id: str, version: int, context: Context) -> ModelFile:
        """Exactly this version; waits in the calling thread."""
        held = self._models.get((federation_id, version))
        if held is not None and held.done() and not held.cancelled() and held.exception() is None:
            return held.result()
        return self._wait(self.fetch(federation_id, version), context)

    async def fetch(self, federation_id: str, version: int) -> ModelFile:
        """Joins a fetch in progress."""
        key = (federation_id, version)
        held = self._models.get(key)
        if held is None:
            held = self._keep(key, asyncio.ensure_future(self._obtain(federation_id, version)))
        try:
            return await asyncio.shield(held)
        except Exception:
            if self._models.get(key) is held:
                del self._models[key]
            raise

    def _keep(self, key: tuple[str, int], held: "asyncio.Future[ModelFile]") -> "asyncio.Future[ModelFile]":
        self._models[key] = held
        while len(self._models) > _MODELS_KEPT:
            self._models.popitem(last=False)
        return held

    async def _obtain(self, federation_id: str, version: int) -> ModelFile:
        """Takes the version from the watch; fetches a federation's first one, and any that the watch did not bring."""
        watch = self._watches.get(federation_id)
        if watch is not None:
            try:
                async with asyncio.timeout(self._limits.policy_seconds):
                    found = await watch.model(version)
            except TimeoutError:
                found = None
            if found is not None:
                return found
        if (watch is None or watch.ended) and not self._closed:
            self._watch(federation_id, version)
        return await self._fetch(federation_id, version)

    def _watch(self, federation_id: str, have_version: int) -> None:
        request = pb.WatchFederatedModelRequest(
            federation_id=federation_id, node_ids=self._hosts, have_version=have_version
        )
        self._watches = {name: watch for name, watch in self._watches.items() if not watch.ended}
        self._watches[federation_id] = ModelWatch(
            self._watch_call(request), have_version, self._limits.policy_bytes, self._arrived
        )

    def _arrived(self, federation_id: str, version: int, model: ModelFile) -> None:
        """Keeps a model for the task that will ask for it, unless one is already waiting for it."""
        if (federation_id, version) not in self._models:
            held = self._loop.create_future()
            held.set_result(model)
            self._keep((federation_id, version), held)

    async def submit(self, updates: Sequence[Update]) -> list[Receipt]:
        """Sends updates until the coordinator has answered each."""
        return await self._updates.submit(updates, self._limits.upload_seconds)

    async def _fetch(self, federation_id: str, version: int) -> ModelFile:
        """Retries while the coordinator restarts."""
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
        call = self._model_call(request, timeout=max(0.001, seconds))
        found: ModelFile | None = None
        try:
            async for model in arriving_models(call, self._limits.policy_bytes):
                found = model.whole()
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            call.cancel()
        if found is None:
            raise Unavailable(f"model version {version} of {federation_id!r} arrived damaged", reason="MODEL_CORRUPT")
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
