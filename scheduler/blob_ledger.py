"""Keeps count of the blobs. A blob is kept for unfinished tasks, for the lease of the client that put it, and for a
while as a result. Other processes also write and read the files. The journal does not mention blobs."""

import errno
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from google.protobuf.message import DecodeError

from parlmesh.blobs import MARK, BlobFolder, check_name
from parlmesh.blobs.free_space import is_shared_memory, usable_bytes
from parlmesh.blobs.spares import is_left, is_private, private_files
from parlmesh.blobs.stock import Stock
from parlmesh.blobs.store import PROOF
from parlmesh.errors import FleetError, InvalidInput, NotFound, ResourceExhausted
from parlmesh.security import Identity
from parlmesh.telemetry import get_logger
from parlmesh.v1.blob_service_pb2 import BlobTerms
from parlmesh.v1.fleet_service_pb2 import Assignment
from parlmesh.v1.task_pb2 import Payload
from parlmesh.wire.tensors import reference_from_proto

from . import metrics
from .blob_folder import LOCK, STORE, claim, is_claimed, sweep
from .config import BlobConfig
from .core.core import Core
from .core.task import SUCCEEDED, AttemptEnd, Failure, Task

log = get_logger("parlmesh.scheduler")

_MARK = MARK.encode()
_RESULT = b"$result"
_SWEEP_SECONDS = 1.0
_LIST_SECONDS = 30.0
_RETRY_SECONDS = 0.2
_CLOSE_TRIES = 100
# The writer name of all clients of the whole fleet.
_CLIENTS = "c"


@dataclass(slots=True)
class _Blob:
    size: int
    kept_until: float
    users: int = 0
    task_id: str = ""
    """The task whose result it is."""
    inherited: bool = False
    """From an earlier process, perhaps of a release whose readers take no locks: its file is not reused."""


class BlobLedger:
    """Counts the blobs, refuses forged and oversized ones, and removes those no longer needed."""

    def __init__(
        self,
        config: BlobConfig,
        folder: Path,
        clock: Callable[[], float],
        *,
        strangers: bool = False,
        store: Path | None = None,
    ) -> None:
        """`strangers`: some nodes or namespaces do not belong to the fleet's owner, so none may use all the space.
        `store`: the file that has the tasks, if they are in one."""
        self._config = config
        self._strangers = strangers
        self._store = store
        self._clock = clock
        self.folder = BlobFolder(folder)
        self.stock = Stock(folder, seconds=config.lease_seconds, clock=clock)
        self.proof = secrets.token_hex(16)
        self._claim: int | None = None
        self._blobs: dict[str, _Blob] = {}
        self.bytes = 0
        # Bytes by writer.
        self._written: Counter[str] = Counter()
        # For each unfinished task: the blobs of its arguments, and the tasks whose results it uses.
        self._arguments: dict[str, tuple[str, ...]] = {}
        self._inputs: dict[str, tuple[str, ...]] = {}
        self._needed: dict[str, int] = {}
        self._next_sweep = self._next_listing = 0.0
        self._limit = config.max_bytes

    def terms(self, writer: str) -> BlobTerms:
        """The blob terms for a client or actor that connects."""
        config = self._config
        terms = BlobTerms(
            folder=str(self.folder.path),
            proof=self.proof,
            writer=writer,
            least_bytes=config.least_bytes,
            largest_bytes=config.largest_bytes,
        )
        terms.lease.FromNanoseconds(int(config.lease_seconds * 1e9))
        return terms

    @property
    def used(self) -> bool:
        """Whether any task has used a blob or the result of another task."""
        return bool(self._blobs or self._inputs)

    def open(self, tasks: Iterable[Task]) -> None:
        """Takes over the blobs of an earlier process, for the unfinished tasks it left."""
        self._take_folder()
        sweep(self.folder.path.parent)
        until = self._clock() + self._config.retention_seconds
        for name, size in self._files():
            self._add(name, size, until).inherited = True
        # There may be a million tasks, and a takeover waits for this.
        for task in [task for task in tasks if task.state < SUCCEEDED and _MARK in task.body]:
            try:
                self.hold(task, self.references(task.body))
            except FleetError as error:
                log.warning("blobs_lost", task_id=task.task_id, reason=error.reason, message=error.message)

    def close(self, *, forget: bool) -> None:
        """`forget`: the tasks end with this process, and so do their blobs. An empty folder is always removed."""
        self.stock.close()
        if forget or not any(self._files()):
            try:
                # Another process may start a new file while this one is being removed.
                for _ in range(_CLOSE_TRIES):
                    if self._emptied(forget):
                        break
            except OSError as error:
                log.warning("blobs_left", folder=str(self.folder.path), error=str(error))
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    def _take_folder(self) -> None:
        folder = self.folder.path
        self._claim = claim(folder, self._store)
        (folder / PROOF).write_text(self.proof)
        self._limit = min(self._config.max_bytes, usable_bytes(folder))
        self.stock.open(self._config.spare_bytes if is_shared_memory(folder) else 0)

    def _has_folder(self) -> bool:
        """Makes the folder again if it was removed; the arrays in it are lost."""
        folder = self.folder.path
        if self._claim is not None:
            if is_claimed(folder, self._claim) and (folder / PROOF).exists():
                return True
            os.close(self._claim)
            self._claim = None
        try:
            self._take_folder()
        except (FleetError, OSError) as error:
            log.warning("blobs_unavailable", folder=str(folder), error=str(error))
            return False
        gone = {name for name in self._blobs if self.folder.size(name) < 0}
        for name in gone:
            self._count(check_name(name)[0], -self._blobs.pop(name).size)
        # The same bytes may come again under the same name, for other tasks.
        for task_id, names in self._arguments.items():
            self._arguments[task_id] = tuple(name for name in names if name not in gone)
        metrics.BLOBS_REMOVED.labels("lost").inc(len(gone))
        log.warning("blobs_lost", folder=str(folder), blobs=len(gone), message="the folder was removed, and made again")
        return True

    def _own(self, forget: bool) -> list[Path]:
        """The files to remove with the folder, including those of killed writers: no later start sweeps them."""
        blobs = [self.folder.file(name) for name, _ in self._files()] if forget else []
        return blobs + [file for file in private_files(self.folder.path) if forget or is_left(file)]

    def _emptied(self, forget: bool) -> bool:
        """Whether the folder was removed; False if a process has started to write there in the meantime."""
        folder = self.folder.path
        if not folder.exists():
            return True
        for file in (*self._own(forget), folder / PROOF, folder / STORE, folder / LOCK):
            file.unlink(missing_ok=True)
        self.stock.close()
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not self._own(forget):
                raise
            return False
        return True

    def references(self, body: bytes) -> Mapping[str, int]:
        """Name and size of every blob that a task's arguments refer to; InvalidInput when a reference is malformed."""
        if _MARK not in body:
            return {}
        return _references(Assignment.FromString(body).payload)

    def check(self, references: Mapping[str, int], writer: str = "") -> None:
        """Raises unless every blob exists with the named size. `writer`: only this writer's blobs may be used."""
        fresh: Counter[str] = Counter()
        for name, size in references.items():
            wrote = check_name(name)[0]
            if writer and wrote != writer:
                raise NotFound(f"{name} is unknown", reason="BLOB_UNKNOWN", blob=name)
            known = self._blobs.get(name)
            held = known.size if known is not None else self.folder.size(name)
            if held < 0:
                raise NotFound(f"{name} is unknown or no longer kept", reason="BLOB_UNKNOWN", blob=name)
            if held != size:
                raise InvalidInput(f"{name} has {held} bytes, but the task names {size}", reason="BLOB_SIZE", blob=name)
            if known is None:
                fresh[wrote] += size
        for wrote, size in fresh.items():
            self.check_room(size, wrote)

    def check_room(self, size: int, writer: str) -> None:
        """Unread results are dropped first, oldest first: the writer's own, then those of writers that hold more. A
        writer that holds little cannot lose it to one that writes a lot."""
        trusted = writer == _CLIENTS or not self._strangers
        most = self._limit if trusted else int(self._limit * self._config.writer_share)
        if self._written[writer] + size > most:
            self._make_room(lambda wrote: wrote == writer, lambda: self._written[writer] + size <= most)
        if self._written[writer] + size > most:
            raise self._full(f"blobs of {self._written[writer]} bytes by one writer", size, most, "blobs.writer_share")
        if self.bytes + size > self._limit:
            mine = self._written[writer] + size
            self._make_room(
                lambda wrote: trusted or wrote == writer or self._written[wrote] > mine,
                lambda: self.bytes + size <= self._limit,
            )
        if self.bytes + size > self._limit:
            raise self._full(f"blobs of {self.bytes} bytes", size, self._limit, "blobs.max_bytes, or the room there is")

    def _make_room(self, of: Callable[[str], bool], enough: Callable[[], bool]) -> None:
        results = [pair for pair in self._blobs.items() if pair[1].task_id and not pair[1].users]
        for name, blob in sorted(results, key=lambda pair: pair[1].kept_until):
            if enough():
                return
            if of(check_name(name)[0]):
                self._remove_if_free(name, blob, math.inf, "room")

    def _full(self, kept: str, size: int, limit: int, setting: str) -> ResourceExhausted:
        return ResourceExhausted(
            f"{kept} are kept, and there is no room for {size} more; the limit is {limit} ({setting})",
            reason="BLOBS_FULL",
            retry_after_seconds=_RETRY_SECONDS,
        )

    def argued(
        self, tasks: Iterable[Task], known: Container[str] = (), writer: str = ""
    ) -> list[tuple[Task, Mapping[str, int]]]:
        """The tasks whose blobs must be held once they are accepted; raises if a task refers to a blob it may not use.

        `known` tasks have been accepted before. `writer`: tasks may refer only to this writer's blobs.
        """
        held = []
        for task in tasks:
            if _MARK in task.body or (task.dependencies and _RESULT in task.body):
                if task.task_id in known:
                    continue
                references = self.references(task.body)
                self.check(references, writer)
                held.append((task, references))
        return held

    def hold(self, task: Task, references: Mapping[str, int]) -> None:
        """Holds an accepted task's blobs, and the results its parameters name, until the task ends."""
        if task.task_id in self._arguments or task.task_id in self._inputs:
            return
        until = self._clock() + self._config.lease_seconds
        for name, size in references.items():
            self._add(name, size, until).users += 1
        if references:
            self._arguments[task.task_id] = tuple(references)
        if task.dependencies and _RESULT in task.body:
            needed = tuple(name for name in dict.fromkeys(task.dependencies) if name.encode() in task.body)
            self._inputs[task.task_id] = needed
            for name in needed:
                self._needed[name] = self._needed.get(name, 0) + 1

    def checked(
        self, ends: Sequence[AttemptEnd], writer: str = "", given: Callable[[str, bytes], bool] | None = None
    ) -> Sequence[AttemptEnd]:
        """Results as an actor sent them; a result that refers to a missing blob becomes a failure.

        With a `writer`, so does a result that refers to another writer's blob, unless the task was `given` that blob:
        any caller who may see the task could read it.
        """
        return [self._checked(end, writer, given) if _MARK in end[2] else end for end in ends]

    def ended(self, tasks: Iterable[Task]) -> None:
        """Releases the arguments of ended tasks; keeps their results until they are released or `retention_seconds`
        have passed."""
        now = self._clock()
        for task in tasks:
            for name in self._arguments.pop(task.task_id, ()):
                blob = self._blobs.get(name)
                if blob is not None:
                    blob.users -= 1
                    blob.kept_until = max(blob.kept_until, now + self._config.lease_seconds)
            for name in self._inputs.pop(task.task_id, ()):
                self._needed[name] -= 1
                if not self._needed[name]:
                    del self._needed[name]
            if _MARK in task.result:
                for name, size in _references(Payload.FromString(task.result)).items():
                    blob = self._add(name, size, now + self._config.retention_seconds)
                    blob.task_id = task.task_id

    @contextmanager
    def reserved(self, size: int, writer: str) -> Iterator[None]:
        """Reserves room for a blob that is being received."""
        self.check_room(size, writer)
        self._count(writer, size)
        try:
            yield
        finally:
            self._count(writer, -size)

    def keep(self, name: str, size: int, seconds: float) -> None:
        """Keeps a blob that was put, for `seconds` from now."""
        self._add(name, size, self._clock() + seconds)

    def hold_names(self, names: Iterable[str], seconds: float, may: Callable[[str, str], bool]) -> int:
        """Keeps blobs for `seconds` from now; 0 releases them. `may(name, task_id)` decides for each, with the id of
        the task whose result it is. Returns how many were found.

        A file released before any task named it has no owner and becomes a spare.
        """
        count, until = 0, self._clock() + seconds
        for name in names:
            check_name(name)
            blob = self._blobs.get(name) or (self._found(name) if seconds else None)
            if blob is not None and may(name, blob.task_id):
                count += 1
                blob.kept_until = until
                if not seconds:
                    self._remove_if_free(name, blob, until)
            elif blob is None and not seconds and self.folder.size(name) >= 0 and may(name, ""):
                self.stock.add(self.folder.file(name), self.folder.size(name))
        return count

    def sweep(self) -> None:
        """Removes blobs no longer needed; from time to time, also files that no process announced."""
        now = self._clock()
        if now < self._next_sweep:
            return
        if not self._has_folder():
            self._next_sweep = now + _LIST_SECONDS
            return
        self._next_sweep = now + _SWEEP_SECONDS
        self.stock.sweep()
        metrics.BLOB_BYTES.set(self.bytes)
        metrics.BLOB_SPARE_BYTES.set(self.stock.bytes)
        for name, blob in list(self._blobs.items()):
            self._remove_if_free(name, blob, now)
        if now >= self._next_listing:
            self._next_listing = now + min(_LIST_SECONDS, self._config.retention_seconds)
            self._remove_untold()

    def _add(self, name: str, size: int, until: float) -> _Blob:
        blob = self._blobs.get(name)
        if blob is None:
            blob = self._blobs[name] = _Blob(size, until)
            self._count(check_name(name)[0], size)
        blob.kept_until = max(blob.kept_until, until)
        return blob

    def _count(self, writer: str, size: int) -> None:
        self.bytes += size
        self.stock.shrink(self._limit - self.bytes)
        self._written[writer] += size
        if not self._written[writer]:
            del self._written[writer]

    def _found(self, name: str) -> _Blob | None:
        """A blob that a client wrote to the folder and now announces."""
        writer, _ = check_name(name)
        size = self.folder.size(name)
        if size < 0:
            return None
        self.check_room(size, writer)
        return self._add(name, size, self._clock())

    def _remove_if_free(self, name: str, blob: _Blob, now: float, reason: str = "free") -> None:
        if not blob.users and blob.kept_until <= now and blob.task_id not in self._needed:
            del self._blobs[name]
            self._count(check_name(name)[0], -blob.size)
            if blob.inherited:
                self.folder.remove(name)
            else:
                self.stock.add(self.folder.file(name), blob.size)
            metrics.BLOBS_REMOVED.labels(reason).inc()

    def _remove_untold(self) -> None:
        oldest = time.time() - self._config.retention_seconds
        for entry in os.scandir(self.folder.path):
            if MARK + entry.name not in self._blobs and (is_private(entry.name) or _is_blob(entry.name)):
                try:
                    found = entry.stat(follow_symlinks=False)
                    # A client that waits to submit a task touches the files of its arrays from time to time.
                    if max(found.st_mtime, found.st_atime) < oldest:
                        Path(entry.path).unlink()
                        metrics.BLOBS_REMOVED.labels("untold").inc()
                except FileNotFoundError:
                    pass

    def _files(self) -> Iterable[tuple[str, int]]:
        try:
            entries = list(os.scandir(self.folder.path))
        except FileNotFoundError:
            return
        for entry in entries:
            name = MARK + entry.name
            try:
                check_name(name)
            except InvalidInput:
                continue
            yield name, max(0, self.folder.size(name))

    def _checked(self, end: AttemptEnd, writer: str, given: Callable[[str, bytes], bool] | None) -> AttemptEnd:
        task_id, lease_id, result, _, ran = end
        try:
            references = _references(Payload.FromString(result))
            for name in references if writer else ():
                if check_name(name)[0] != writer and not (given is not None and given(task_id, name.encode())):
                    raise NotFound(f"{name} is unknown", reason="BLOB_UNKNOWN", blob=name)
            self.check(references)
        except (FleetError, DecodeError) as error:
            full = isinstance(error, ResourceExhausted)
            text = error.message if isinstance(error, FleetError) else "the result cannot be parsed"
            failure = Failure(error.reason if full and isinstance(error, FleetError) else "INVALID_RESULT", text, full)
            return task_id, lease_id, b"", failure, ran
        return end


def _is_blob(file_name: str) -> bool:
    """Other files in a folder that an operator chose must not be removed."""
    try:
        check_name(MARK + file_name)
    except InvalidInput:
        return False
    return True


def writer_of(kind: str, name: str) -> str:
    """The writer part of a blob's name: c = clients of the fleet, n = clients of a namespace, a = actors of a node."""
    return kind + sha256(name.encode()).hexdigest()[:12] if name else kind


def client_writer(identity: Identity) -> str:
    """Clients of a namespace write and use their namespace's blobs."""
    return writer_of("n", identity.namespace) if identity.namespace else writer_of("c", "")


def _references(payload: Payload) -> dict[str, int]:
    found = (reference_from_proto(tensor) for tensor in payload.tensors if tensor.blob)
    return {reference.name: reference.nbytes for reference in found}


def is_given(core: Core, task_id: str, name: bytes) -> bool:
    """Whether a blob is an argument or the result of a task, or of a task that it depends on."""
    task = core.life.tasks.get(task_id)
    parents = () if task is None else map(core.life.tasks.get, task.dependencies)
    return any(one is not None and (name in one.body or name in one.result) for one in (task, *parents))
