"""Large arrays of a client's tasks: kept beside the tasks while needed, then released."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar
from weakref import finalize

from parlmesh.blob_transfer import Exchange
from parlmesh.blobs import Reference
from parlmesh.errors import FailedPrecondition, FleetError, ResourceExhausted, Unavailable
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire.payloads import references_in

from .blob_uses import BlobUses
from .task_request import TaskRequest, references_of

Numbered: TypeAlias = tuple[int, TaskRequest]
T = TypeVar("T")
Insist: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class Arrays:
    """Writes arrays, and releases those no longer needed. On the loop, except `load` and `release`."""

    def __init__(self, exchange: Exchange, insist: Insist | None = None) -> None:
        """`insist` repeats what fails while the scheduler is away."""
        self.exchange = exchange
        self._insist = insist or _once
        self.uses = BlobUses()
        self._free: set[str] = set()
        self._pen = asyncio.Lock()
        self._closed = False
        # Names must differ from those of other clients, because each client releases its own.
        self._first_life = secrets.token_hex(6)
        self._loop = asyncio.get_running_loop()

    @property
    def _life(self) -> str:
        """Changes while released blobs may still be removed, so no new blob takes one of their names."""
        unanswered = self.exchange.unanswered
        return f"{self._first_life}-{unanswered:x}" if unanswered else self._first_life

    def without(self, request: TaskRequest) -> tuple[TaskRequest, frozenset[str]]:
        """The request with references in place of large arrays, and their names. The caller uses or releases them
        before it does anything else."""
        self._check_open()
        names: set[str] = set()
        try:
            tensors = self.exchange.blobs.kept(request.tensors, self._life, names=names)
        except FleetError:
            self.give_up(names)
            raise
        return request if tensors is request.tensors else replace(request, tensors=tensors), references_of(tensors)

    def use(self, task_id: str, names: Iterable[str], parents: Iterable[str]) -> None:
        """A task needs these blobs, and the results of its parents, until it ends."""
        self.uses.begin(task_id, names, parents)

    @asynccontextmanager
    async def written(self, requests: Sequence[Numbered]) -> AsyncIterator[list[Numbered]]:
        """Many requests, with arrays written by a thread. The block submits them."""
        async with self._writing() as names:
            try:
                written = await _by_a_thread(lambda: [(index, self._written(each, names)) for index, each in requests])
            except ResourceExhausted:
                await self._room(names)
                written = await _by_a_thread(lambda: [(index, self._tried(each, names)) for index, each in requests])
            self._check_open()
            yield written

    def _written(self, request: TaskRequest, names: set[str]) -> TaskRequest:
        if not isinstance(request, TaskRequest) or not isinstance(request.tensors, Mapping):
            return request
        try:
            tensors = self.exchange.blobs.kept(request.tensors, self._life, names=names)
        except ResourceExhausted:
            raise
        except FleetError:
            return request  # refused when it is submitted, with the array's name
        return replace(request, tensors=tensors)

    def _tried(self, request: TaskRequest, names: set[str]) -> TaskRequest:
        try:
            return self._written(request, names)
        except ResourceExhausted:
            return request

    async def _room(self, names: set[str]) -> None:
        """Waits until released blobs are removed, except these. The thread does not write in the meantime."""
        free, self._free = self._free - names, self._free & names
        self.exchange.give_up(name for name in free if name not in self.uses)
        await self.exchange.given_up()

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[set[str]]:
        """One request at a time. An array that is already there is not written again, so nothing is released until this
        request uses it. The set collects the names written; unused ones are removed."""
        names: set[str] = set()
        try:
            async with self._pen:
                yield names
        finally:
            self.exchange.blobs.forget(name for name in names if name not in self.uses)
            self.give_up(())

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the controller was closed", reason="CLOSED")

    def give_up(self, names: Iterable[str]) -> None:
        """Releases the named blobs that nothing else in this client needs."""
        self._free.update(names)
        if not self._pen.locked():
            free, self._free = self._free, set()
            self.exchange.give_up(name for name in free if name not in self.uses)

    def ended(self, task_id: str, outcome: pb.Outcome | None) -> None:
        """Releases blobs that no other task needs. A blob that is also the task's result is released with that."""
        tensors = () if outcome is None else outcome.result.tensors
        self.give_up(self.uses.end(task_id, frozenset(tensor.blob for tensor in tensors if tensor.blob)))

    async def put(self, array: Array) -> Reference:
        """Keeps an array on the fleet for as long as the reference is held."""
        async with self._writing() as names:
            try:
                reference = await _by_a_thread(lambda: self._put(array, names))
            except ResourceExhausted:
                await self._room(names)
                reference = await _by_a_thread(lambda: self._put(array, names))
            self._check_open()
            name = reference.name
            self.uses.puts[name] += 1
            finalize(reference, self._soon, self._forget, name).atexit = False
        await self._insist(lambda: self.exchange.upload([reference]))
        await self._insist(lambda: self.exchange.tell(reference))
        return reference

    def _put(self, array: Array, names: set[str]) -> Reference:
        reference = self.exchange.blobs.keep(array, self._life)
        names.add(reference.name)
        return reference

    async def renew(self) -> None:
        """Renews the leases of arrays that were put, and touches the files that tasks need; never returns."""
        while True:
            await asyncio.sleep(self.exchange.lease_seconds / 3)
            if self.exchange.blobs.folder is not None:
                # The scheduler may not know them yet: it refuses tasks while its queue has no room.
                for name in self.uses.arguments:
                    self.exchange.blobs.folder.touch(name)
            if puts := list(self.uses.puts):
                await self.exchange.hold(puts, self.exchange.lease_seconds)

    def load(self, reference: Reference) -> Array:
        """The array of a result. If it was on another host, it must have been fetched."""
        blobs = self.exchange.blobs
        if not blobs.shared and blobs.folder is not None and blobs.folder.size(reference.name) < 0:
            raise FailedPrecondition(
                f"{reference.name} is on another host; await controller.fetch(outcome) brings it", reason="NOT_FETCHED"
            )
        return blobs.load(reference)

    async def fetch(self, task_id: str, result: pb.Payload) -> None:
        """Brings the arrays of a result to this host."""
        await self._insist(lambda: self.exchange.fetch(references_in(result), task_id))

    def release(self, task_id: str, references: Iterable[Reference]) -> None:
        """Releases the arrays of a result that has been read, or will not be. From any thread."""
        if names := frozenset(each.name for each in references):
            self._soon(self._released, task_id, names)

    def release_with(self, holder: Any, task_id: str, references: Sequence[Reference]) -> None:
        """Releases them once an object no longer exists: until then, its result may be used as an argument."""
        if names := frozenset(each.name for each in references):
            self.uses.hold(task_id, names, own=True)
            finalize(holder, self._soon, self._released, task_id, names).atexit = False

    def _released(self, task_id: str, names: frozenset[str]) -> None:
        self.give_up(self.uses.release(task_id, names))

    async def close(self) -> None:
        """Releases everything; opened arrays stay valid. Requests whose arrays are still being written are not
        submitted."""
        self._closed = True
        await self.exchange.close([*self.uses, *self._free])

    def _forget(self, name: str) -> None:
        self.uses.take_back(name)
        self.give_up([name])

    def _soon(self, call: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its blobs were released
            self._loop.call_soon_threadsafe(call, *arguments)


async def _once(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def _by_a_thread(work: Callable[[], T]) -> T:
    """Waits until the work ends, even if cancelled: the names it writes must be known before anything is released."""
    thread = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not thread.done():
        try:
            await asyncio.wait([thread])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        thread.exception()
        raise cancelled
    return thread.result()
