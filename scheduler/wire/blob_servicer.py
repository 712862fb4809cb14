"""BlobService over gRPC, for processes that do not share the scheduler's folder."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import xxhash

from parlmesh import limits
from parlmesh.blobs import check_name
from parlmesh.blobs.free_space import cannot_keep
from parlmesh.blobs.spares import private_file
from parlmesh.durable_files import write_all
from parlmesh.errors import DeadlineExceeded, InvalidInput, NotFound, PermissionDenied, ResourceExhausted
from parlmesh.rpc import caller
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.downloads import Downloads
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.security import Role
from parlmesh.v1 import blob_service_pb2 as pb
from parlmesh.wire.chunks import chunk_to_wire

from ..blob_ledger import BlobLedger, client_writer, is_given, writer_of
from ..config import BlobConfig
from ..core.core import Core
from .leader_redirect import Seat
from .namespaces import Tenant

Context = Any

CHUNK_BYTES = 1 << 20
SILENCE_SECONDS = 30.0
# A blob must also arrive at this minimum rate.
PUT_SECONDS, SLOWEST_BYTES_PER_SECOND = 30.0, 64 << 10
_DATA = b"\x0a"


class BlobServicer:
    """The service that clients and actors on other hosts call."""

    def __init__(self, seat: Seat, config: BlobConfig) -> None:
        self._seat = seat
        self._config = config
        self._downloads = Downloads()

    @property
    def _core(self) -> Core:
        return self._seat.shell.core

    @property
    def _ledger(self) -> BlobLedger:
        ledger = self._seat.shell.blobs
        assert ledger is not None
        return ledger

    @property
    def service(self) -> Service:
        """To be served."""
        return service_of(pb.DESCRIPTOR, "BlobService", self, writes_encoded=("GetBlob",))

    async def PutBlob(self, requests: AsyncIterator[pb.PutBlobRequest], context: Context) -> pb.PutBlobResponse:
        """Writes to a private file, and renames it once size and digest match."""
        first = await anext(aiter(requests), None)
        if first is None:
            raise InvalidInput("PutBlob has no message; the first names the blob", reason="MISSING_NAME")
        writer, digest = check_name(first.name)
        self._check_writer(writer, first.name)
        size = first.size_bytes
        if not 0 < size <= self._config.largest_bytes:
            raise ResourceExhausted(
                f"{first.name} has {size} bytes; it must have 1 to {self._config.largest_bytes} (blobs.largest_bytes)",
                reason="BLOB_TOO_LARGE",
            )
        seconds = PUT_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        with self._ledger.reserved(size, writer):
            try:
                async with asyncio.timeout(seconds):
                    await self._receive(first, requests, digest)
            except TimeoutError:
                text = f"{first.name} of {size} bytes did not come within {seconds:g} seconds"
                raise DeadlineExceeded(text, reason="SLOW_BLOB") from None
        self._ledger.keep(first.name, size, self._config.lease_seconds)
        return pb.PutBlobResponse()

    async def _receive(self, first: pb.PutBlobRequest, rest: AsyncIterator[pb.PutBlobRequest], digest: str) -> None:
        folder, size = self._ledger.folder, first.size_bytes
        temporary, descriptor = private_file(folder.path), -1
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            found, written = xxhash.xxh3_128(), 0
            message: pb.PutBlobRequest | None = first
            while message is not None:
                data = message.data
                written += len(data)
                if written > size:
                    raise InvalidInput(f"{first.name} has more bytes than the {size} announced", reason="BLOB_SIZE")
                found.update(data)
                write_all(descriptor, data)
                message = await _next(rest, first.name)
            if written != size:
                raise InvalidInput(f"{first.name} has {written} bytes, but {size} were announced", reason="BLOB_SIZE")
            if found.hexdigest() != digest:
                raise InvalidInput(f"the bytes of {first.name} do not match its digest", reason="BLOB_CORRUPT")
            temporary.rename(folder.file(first.name))
        except OSError as error:
            raise cannot_keep(first.name, size, folder.path, error) from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)

    async def GetBlob(self, request: pb.GetBlobRequest, context: Context) -> None:
        """Writes encoded GetBlobResponses."""
        writer, _ = check_name(request.name)
        if not (self._reads(request) if request.task_id else self._is(writer)):
            raise _unknown(request.name)
        size = self._ledger.folder.size(request.name)
        if size < 0:
            raise _unknown(request.name)
        async with self._downloads.place(0):
            data = (await asyncio.to_thread(self._ledger.folder.read, request.name, size)).data
            for start in range(0, size, CHUNK_BYTES):
                await context.write(chunk_to_wire(_DATA, data[start : start + CHUNK_BYTES]))

    async def HoldBlobs(self, request: pb.HoldBlobsRequest, context: Context) -> pb.HoldBlobsResponse:
        limits.BLOBS.check(len(request.names), "the request")
        limits.HOLD_SECONDS.check(request.seconds)
        return pb.HoldBlobsResponse(held=self._ledger.hold_names(request.names, request.seconds, self._may_hold))

    def _may_hold(self, name: str, task_id: str) -> bool:
        task = self._core.life.tasks.get(task_id)
        return self._is(check_name(name)[0]) or (task is not None and self._tenant().sees(task))

    def _reads(self, request: pb.GetBlobRequest) -> bool:
        """Whether the caller may read the blob through a task that it sees or runs: as an argument, as its result, or
        as an argument or the result of a dependency."""
        task, identity = self._core.life.tasks.get(request.task_id), caller()
        if task is None:
            return False
        if identity.role is Role.ACTOR:
            if task.actor is None or not identity.speaks_for(task.actor.node_id):
                return False
        elif not self._tenant().sees(task):
            return False
        return is_given(self._core, task.task_id, request.name.encode())

    def _check_writer(self, writer: str, name: str) -> None:
        if not self._is(writer):
            raise PermissionDenied(f'"{caller().name}" may not write {name}, of another writer', reason="BLOB_WRITER")

    def _is(self, writer: str) -> bool:
        """Whether the caller writes under this name. Without identities, every caller may use every writer's name."""
        identity = caller()
        if identity.role is Role.ACTOR:
            return writer == writer_of("a", identity.name)
        return not identity.namespace or writer == client_writer(identity)

    def _tenant(self) -> Tenant:
        return Tenant(self._core, caller())


async def _next(messages: AsyncIterator[pb.PutBlobRequest], name: str) -> pb.PutBlobRequest | None:
    """The next message. A sender that goes silent loses the room reserved for it."""
    try:
        # Not wait_for: in 3.11 it loses a cancellation that comes with a message, and so the limit of the whole blob.
        async with asyncio.timeout(SILENCE_SECONDS):
            return await anext(aiter(messages), None)
    except TimeoutError:
        text = f"nothing more of {name} came within {SILENCE_SECONDS:g} s"
        raise DeadlineExceeded(text, reason="SLOW_BLOB") from None


def _unknown(name: str) -> NotFound:
    return NotFound(f"{name} is unknown or no longer kept", reason="BLOB_UNKNOWN", blob=name)
