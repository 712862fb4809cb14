"""Large arrays of a client's tasks: kept beside the tasks while needed, then released."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias
from weakref import finalize

from parlmesh.blob_transfer import Exchange
from parlmesh.blobs import Reference
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.types import Array
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire.payloads import references_in

from .task_request import TaskRequest

Numbered: TypeAlias = tuple[int, TaskRequest]


class Arrays:
    """Counts which of its blobs unfinished tasks and references use. On the loop, except `load` and `release`."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.arguments: dict[str, tuple[str, ...]] = {}
        """Of unfinished tasks: the blobs that this client wrote for them."""
        self._uses: dict[str, int] = {}
        self._puts: dict[str, int] = {}
        self._results: set[str] = set()
        self._free: set[str] = set()
        self._pen = asyncio.Lock()
        # Names must not meet those of another client: each gives up its own.
        self._life = secrets.token_hex(6)
        self._loop = asyncio.get_running_loop()

    def without(self, request: TaskRequest, task_id: str) -> TaskRequest:
        """The request with references in the place of large arrays."""
        tensors = self.exchange.blobs.kept(request.tensors, self._life)
        names = tuple({each.name for each in tensors.values() if isinstance(each, Reference)})
        if names:
            self.arguments[task_id] = names
            for name in names:
                self._uses[name] = self._uses.get(name, 0) + 1
        return request if tensors is request.tensors else replace(request, tensors=tensors)

    @asynccontextmanager
    async def written(self, requests: Sequence[Numbered]) -> AsyncIterator[list[Numbered]]:
        """Many requests, their arrays written by a thread. The block submits them."""
        async with self._writing():
            yield await asyncio.to_thread(lambda: [(index, self._written(request)) for index, request in requests])

    def _written(self, request: TaskRequest) -> TaskRequest:
        if not isinstance(request, TaskRequest) or not request.tensors:
            return request
        try:
            return replace(request, tensors=self.exchange.blobs.kept(request.tensors, self._life))
        except InvalidInput:
            return request  # is refused when it is submitted, by name

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """One at a time. An array that is there already is not written, so none is given up until this one is used."""
        try:
            async with self._pen:
                yield
        finally:
            self._give_up(())

    def _give_up(self, names: Iterable[str]) -> None:
        self._free.update(names)
        if not self._pen.locked():
            free, self._free = self._free, set()
            self.exchange.give_up(name for name in free if name not in self._uses and name not in self._puts)

    def ended(self, task_id: str, outcome: pb.Outcome | None) -> None:
        """Gives up what no other task uses, except what came back as the result."""
        answered = {tensor.blob for tensor in outcome.result.tensors} if outcome is not None else set()
        free = []
        for name in self.arguments.pop(task_id):
            self._uses[name] -= 1
            if not self._uses[name]:
                del self._uses[name]
                if name not in answered:
                    free.append(name)
        self._give_up(free)

    async def put(self, array: Array) -> Reference:
        """Keeps an array on the fleet for as long as the reference is held."""
        blobs = self.exchange.blobs
        async with self._writing():
            reference = await asyncio.to_thread(blobs.keep, array, self._life)
            name = reference.name
            self._puts[name] = self._puts.get(name, 0) + 1
            finalize(reference, self._soon, self._forget, name).atexit = False
        await self.exchange.upload([reference])
        await self.exchange.tell(reference)
        return reference

    async def renew(self) -> None:
        """Prolongs the leases of what was put; never returns."""
        while True:
            await asyncio.sleep(self.exchange.lease_seconds / 3)
            if self._puts:
                await self.exchange.hold(list(self._puts), self.exchange.lease_seconds)

    def load(self, reference: Reference) -> Array:
        """The array of a result. One that is still on another host must have been fetched."""
        blobs = self.exchange.blobs
        if not blobs.shared and blobs.folder is not None and blobs.folder.size(reference.name) < 0:
            raise FailedPrecondition(
                f"{reference.name} is on another host; await controller.fetch(outcome) brings it", reason="NOT_FETCHED"
            )
        return blobs.load(reference)

    async def fetch(self, task_id: str, result: pb.Payload) -> None:
        """Brings the arrays of a result to this host."""
        await self.exchange.fetch(references_in(result), task_id)

    def release(self, references: Iterable[Reference]) -> None:
        """The arrays of a result have been read, or nobody will."""
        names = [each.name for each in references if each.name not in self._puts and each.name not in self._uses]
        if names:
            self._results.difference_update(names)
            self._soon(self._give_up, names)

    def release_with(self, holder: Any, references: Sequence[Reference]) -> None:
        """The same once an object is gone: as long as it is there, its result may be an argument."""
        if references:
            self._results.update(each.name for each in references)
            finalize(holder, self.release, references).atexit = False

    async def close(self) -> None:
        """Gives up everything; arrays that were opened stay what they are."""
        await self.exchange.close([*self._uses, *self._puts, *self._results, *self._free])

    def _forget(self, name: str) -> None:
        self._puts[name] -= 1
        if not self._puts[name]:
            del self._puts[name]
            self._give_up([name])

    def _soon(self, call: Any, *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it what it held
            self._loop.call_soon_threadsafe(call, *arguments)
