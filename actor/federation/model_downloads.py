"""Downloads federated models for this process's nodes. Chunks are written to their final place and hashed as they
arrive."""

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import Any

import numpy as np

from parlmesh.digests import fast_hasher
from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.federation.model_file import ModelFile, read_model
from parlmesh.telemetry import get_logger
from parlmesh.v1 import federation_service_pb2 as pb
from parlmesh.wire.chunks import MODEL_DATA, chunk_from_wire

from ..stream_errors import STREAM_ERRORS, fleet_error_of


class ArrivingModel:
    """The buffer for one version; ResourceExhausted when it is larger than `limit`."""

    def __init__(self, header: pb.ModelHeader, limit: int) -> None:
        if header.size_bytes > limit:
            raise ResourceExhausted(
                f"model version {header.version} has {header.size_bytes} bytes; the limit is {limit}"
                " (limits.policy_bytes)"
            )
        self.federation_id, self.version = header.federation_id, header.version
        self._checksum = header.checksum
        # numpy asks for large pages: touching a buffer of 40 MB costs a quarter of what bytes would.
        self._room = np.empty(header.size_bytes, np.uint8)
        self._view = memoryview(self._room)  # type: ignore[arg-type]
        self._hasher = fast_hasher()
        self._received = 0

    def take(self, data: memoryview) -> bool:
        """Adds one chunk; False when there is no room for it."""
        after = self._received + len(data)
        if after > len(self._view):
            return False
        self._view[self._received : after] = data
        self._hasher.update(data)
        self._received = after
        return True

    @property
    def missing(self) -> int:
        """Bytes that are still to come."""
        return len(self._view) - self._received

    def whole(self) -> ModelFile | None:
        """The model; None when it is not what its header said."""
        if self.missing or self._hasher.digest() != self._checksum:
            return None
        self._room.flags.writeable = False
        return read_model(memoryview(self._room))  # type: ignore[arg-type]


log = get_logger("parlmesh.actor")


class ModelWatch:
    """One stream, until it ends. `arrived` is called with every complete version."""

    def __init__(
        self, call: Any, have_version: int, limit: int, arrived: Callable[[str, int, ModelFile], None]
    ) -> None:
        self._call = call
        self._limit = limit
        self._arrived = arrived
        self._newest = have_version
        self._held: ModelFile | None = None
        self._waiting: dict[asyncio.Future[ModelFile | None], int] = {}
        self.ended = False
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def model(self, version: int) -> ModelFile | None:
        """Waits for a version; None when it will not come this way, because it is too old or the stream has ended."""
        if version == self._newest:
            return self._held
        if self.ended or version < self._newest:
            return None
        future: asyncio.Future[ModelFile | None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = version
        try:
            return await future
        finally:
            del self._waiting[future]

    async def close(self) -> None:
        """Ends the stream."""
        self._call.cancel()
        await asyncio.wait({self._reader})

    async def _read(self) -> None:
        try:
            async for model in arriving_models(self._call, self._limit):
                found = model.whole()
                if found is None:
                    log.warning("model_damaged", federation_id=model.federation_id, version=model.version)
                    return
                self._newest, self._held = model.version, found
                self._arrived(model.federation_id, model.version, found)
                for future, version in self._waiting.items():
                    if version <= model.version and not future.done():
                        future.set_result(found if version == model.version else None)
        except STREAM_ERRORS as error:
            log.debug("model_watch_broken", message=fleet_error_of(error).message)
        except asyncio.CancelledError:
            # grpc raises it from the read of a call that `close` cancelled; the task ends here in any case.
            log.debug("model_watch_cancelled")
        finally:
            self.ended = True
            self._call.cancel()
            for future in self._waiting:
                if not future.done():
                    future.set_result(None)


async def arriving_models(messages: AsyncIterable[bytes], limit: int) -> "AsyncIterable[ArrivingModel]":
    """Yields each model of encoded GetFederatedModelResponses or WatchFederatedModelResponses once it is complete.

    A model cut short by the end of the stream, or longer than its header says, is yielded too. FleetError when one is
    larger than `limit`.
    """
    model: ArrivingModel | None = None
    async for message in messages:
        data = chunk_from_wire(MODEL_DATA, message)
        if data is None:
            opening = pb.GetFederatedModelResponse.FromString(message)
            model, data = ArrivingModel(opening.header, limit), memoryview(opening.data)
        if model is None:
            raise FleetError("a model came without a header", reason="MODEL_CORRUPT")
        if not model.take(data):
            break
        if not model.missing:
            yield model
            model = None
    if model is not None:
        yield model
