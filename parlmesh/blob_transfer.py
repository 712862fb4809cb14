"""Moves blobs between this process and the scheduler if they share no folder, and gives blobs up once read."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc.aio
import xxhash

from parlmesh.blobs import BlobFolder, Blobs, Reference, check_name
from parlmesh.blobs.free_space import cannot_keep, place_for_blobs, usable_bytes
from parlmesh.blobs.private_folder import make_private
from parlmesh.blobs.spares import is_private, private_file
from parlmesh.durable_files import write_all
from parlmesh.errors import FleetError, NotFound, Unavailable
from parlmesh.rpc import Backoff, error_from_rpc
from parlmesh.telemetry import get_logger
from parlmesh.v1.blob_service_pb2 import BlobTerms, GetBlobRequest, HoldBlobsRequest, PutBlobRequest

log = get_logger("parlmesh.blobs")

_CHUNK_BYTES = 1 << 20
# How long a scheduler may be away while it is told of an array.
_AWAY_SECONDS = 30.0
# A private file without a write for this long no longer has a writer.
_WRITING_SECONDS = 600.0


class Exchange:
    """Connects one process to the scheduler's blobs; its tasks use `blobs`."""

    def __init__(self, stub: Any, address: str, *, cache_bytes: int, call_seconds: float, keeps_results: bool) -> None:
        """`keeps_results`: keeps large arrays as blobs even if they must be sent later, as an actor does."""
        self.blobs = Blobs()
        self.unanswered = 0
        """Calls that released blobs and got no answer: the blobs they named may still be removed at any time."""
        self.lease_seconds = 60.0
        self._stub = stub
        self._address = address
        self._cache_bytes = cache_bytes
        self._seconds = call_seconds
        self._keeps_results = keeps_results
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._given_up: list[str] = []
        self._sending: asyncio.Task[None] | None = None
        self._closed = False

    def agree(self, terms: BlobTerms) -> None:
        """Applies the terms that the scheduler sends on every connection."""
        if not terms.folder:
            return
        self.lease_seconds = max(1.0, terms.lease.ToNanoseconds() / 1e9)
        blobs, sizes = self.blobs, (terms.least_bytes, terms.largest_bytes)
        if not blobs.share(terms.folder, terms.proof, terms.writer, *sizes):
            blobs.cache(_cache_folder(self._address), terms.writer, *sizes, keeps=self._keeps_results)

    async def fetch(self, references: Iterable[Reference], task_id: str) -> None:
        """Downloads blobs that this host lacks; each only once, however many tasks wait for it."""
        folder = self.blobs.folder
        if self.blobs.shared or folder is None:
            return
        for reference in references:
            check_name(reference.name)
            if folder.size(reference.name) == reference.nbytes:
                folder.touch(reference.name)
                continue
            task = self._fetching.get(reference.name)
            if task is None:
                task = asyncio.create_task(self._download(folder, reference, task_id))
                self._fetching[reference.name] = task
                task.add_done_callback(partial(self._arrived, reference.name))
            await asyncio.shield(task)

    def _arrived(self, name: str, task: "asyncio.Task[None]") -> None:
        self._fetching.pop(name, None)

    async def upload(self, references: Iterable[Reference]) -> None:
        """Sends the blobs that this process has written, before they are announced."""
        folder = self.blobs.folder
        if self.blobs.shared or folder is None:
            return
        for reference in references:
            if check_name(reference.name)[0] == self.blobs.writer:
                try:
                    await self._stub.PutBlob(_pieces(folder, reference), timeout=self._seconds)
                except grpc.aio.AioRpcError as error:
                    raise error_from_rpc(error) from error

    async def tell(self, reference: Reference) -> None:
        """Tells the scheduler of a blob that no task names yet, unless it was sent. Waits for one that is away."""
        if self.blobs.shared:
            request = HoldBlobsRequest(names=[reference.name], seconds=int(self.lease_seconds))
            backoff, until = Backoff(first=0.05, limit=1.0), time.monotonic() + _AWAY_SECONDS
            while True:
                try:
                    answer = await self._stub.HoldBlobs(request, timeout=self._seconds)
                    break
                except grpc.aio.AioRpcError as rpc_error:
                    error, pause = error_from_rpc(rpc_error), backoff.next()
                    if not isinstance(error, Unavailable):
                        raise error from rpc_error
                    if self._closed or time.monotonic() + pause >= until:
                        text = f"the scheduler at {self._address} gave no answer within {_AWAY_SECONDS:g} s: {error}"
                        raise Unavailable(text, address=self._address) from rpc_error
                except grpc.aio.UsageError as closed:
                    raise Unavailable("the controller was closed", reason="CLOSED") from closed
                await asyncio.sleep(pause)
            if not answer.held:
                raise NotFound(
                    f"{reference.name} was written, but the scheduler does not see it", reason="BLOB_UNKNOWN"
                )

    async def hold(self, names: Iterable[str], seconds: float) -> bool:
        """Keeps blobs for longer, or releases them; returns whether the scheduler answered. Best effort, since a lease
        ends by itself."""
        try:
            await self._stub.HoldBlobs(HoldBlobsRequest(names=names, seconds=int(seconds)), timeout=self._seconds)
        except grpc.aio.AioRpcError as error:
            log.warning("blobs_not_held", reason=str(error.code()))
            return False
        return True

    def give_up(self, names: Iterable[str]) -> None:
        """Releases blobs that were read, together with others released during the last call. Until the scheduler
        answers, nothing is kept under these names."""
        if self._closed:
            return
        names = list(names)
        self.blobs.leaving.update(names)
        self._given_up += names
        if self._given_up and self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._give_up())

    async def given_up(self) -> None:
        """Waits until the scheduler has answered for all of them."""
        while self._sending is not None:
            await asyncio.wait([self._sending])

    async def close(self, names: Iterable[str]) -> None:
        """Releases the last blobs; later calls of `give_up` do nothing."""
        self._closed = True
        if self._sending is not None:
            await asyncio.wait([self._sending])
        last = list(names)
        for start in range(0, len(last), 10_000):
            await self.hold(last[start : start + 10_000], 0)

    async def _give_up(self) -> None:
        try:
            while self._given_up:
                names, self._given_up = self._given_up[:10_000], self._given_up[10_000:]
                if not await self.hold(names, 0):
                    self.unanswered += 1
                self.blobs.leaving.difference_update(set(names).difference(self._given_up))
        finally:
            self._sending = None

    async def _download(self, folder: BlobFolder, reference: Reference, task_id: str) -> None:
        try:
            _make_room(folder.path, min(self._cache_bytes, usable_bytes(folder.path)) - reference.nbytes)
            await self._receive(folder, reference, task_id)
        except OSError as error:
            raise cannot_keep(reference.name, reference.nbytes, folder.path, error) from error

    async def _receive(self, folder: BlobFolder, reference: Reference, task_id: str) -> None:
        _, digest = check_name(reference.name)
        temporary = private_file(folder.path)
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            found, written = xxhash.xxh3_128(), 0
            request = GetBlobRequest(name=reference.name, task_id=task_id)
            async for message in self._stub.GetBlob(request, timeout=self._seconds):
                written += len(message.data)
                if written > reference.nbytes:
                    break
                found.update(message.data)
                write_all(descriptor, message.data)
            if written != reference.nbytes or found.hexdigest() != digest:
                raise Unavailable(f"the bytes sent for {reference.name} do not match its digest", reason="BLOB_CORRUPT")
            temporary.rename(folder.file(reference.name))
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)


async def _pieces(folder: BlobFolder, reference: Reference) -> AsyncIterator[PutBlobRequest]:
    data = folder.read(reference.name, reference.nbytes).data
    for start in range(0, len(data), _CHUNK_BYTES):
        piece = bytes(data[start : start + _CHUNK_BYTES])
        if start:
            yield PutBlobRequest(data=piece)
        else:
            yield PutBlobRequest(name=reference.name, size_bytes=len(data), data=piece)


def _cache_folder(address: str) -> Path:
    """One folder per scheduler, for all processes of this host and user."""
    folder = place_for_blobs() / f"parlmesh-{os.getuid()}-cache-{sha256(address.encode()).hexdigest()[:16]}"
    if not make_private(folder):
        raise FleetError(
            f"{folder} must be a folder that this user alone may use; remove what is there", reason="BLOB_FOLDER"
        )
    return folder


def _make_room(folder: Path, most_bytes: int) -> None:
    """Removes the least recently used files; a process that has one mapped keeps it. Files that other processes are
    writing are kept; unfinished files of killed processes are removed."""
    files, held, oldest = [], 0, time.time() - _WRITING_SECONDS
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError):  # other processes make room, too
            found = entry.stat()
            if not is_private(entry.name):
                files.append((found.st_atime, found.st_size, entry.path))
            elif found.st_mtime < oldest:
                os.unlink(entry.path)
                continue
            held += found.st_size
    for _, size, path in sorted(files):
        if held <= most_bytes:
            return
        with suppress(FileNotFoundError):
            os.unlink(path)
        held -= size
