"""Outgoing tasks: named, encoded once, and packed into parcels that wait for a request. Sends nothing."""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration

from parlmesh.errors import DeadlineExceeded, FleetError, InvalidInput
from parlmesh.v1 import task_pb2 as pb
from parlmesh.wire import payload_to_proto
from parlmesh.wire.fields import SMALL, SMALL_NUMBERS, varint

from ..outcomes import refused
from ..task_request import Placement, Priority, TaskRequest, written_for
from .pending_outcomes import Pending, Sink
from .retry import SchedulerCalls
from .task_parcels import TASKS_PER_REQUEST, Parcel, wanted

# Tag bytes: field number * 8 + wire type 2, length-delimited.
_TASKS, _TASK_ID, _PAYLOAD = b"\x0a", b"\x0a", b"\x1a"
_MOST_ATTEMPTS = (1 << 32) - 1
_LONGEST_SECONDS = 100 * 365 * 86400.0
_HEADS_KEPT = 1024
_PRIORITIES = frozenset(Priority)
_NO_NAMES: frozenset[str] = frozenset()


class Outgoing:
    """Parcels that wait for a request. All ready parcels are sent together; none waits for more."""

    def __init__(self, *, most_tasks: int, most_bytes: int) -> None:
        self._most_tasks = most_tasks
        self.most_bytes = most_bytes
        self.parcels: deque[Parcel] = deque()
        self.ready = asyncio.Event()
        """Set whenever `take` may have something."""

    def put(self, parcel: Parcel) -> None:
        self.parcels.append(parcel)
        self.ready.set()

    def pack(self, parcel: Parcel, task_id: str, task: bytes) -> Parcel:
        """Adds a task to the parcel, or to a new one when it is full."""
        if parcel.tasks and (len(parcel.tasks) >= self._most_tasks or parcel.size + len(task) > self.most_bytes):
            self.put(parcel)
            parcel = Parcel(ordered=parcel.ordered)
        parcel.task_ids.append(task_id)
        parcel.tasks.append(task)
        parcel.size += len(task)
        return parcel

    def take(self, *, others_in_flight: bool) -> list[Parcel]:
        """The next request's parcels; empty if none wait, or if the next must wait for those in flight."""
        taken: list[Parcel] = []
        tasks = size = 0
        while self.parcels:
            parcel = self.parcels[0]
            if not parcel.unwanted:
                tasks, size = tasks + len(parcel.tasks), size + parcel.size
                too_much = tasks > self._most_tasks or size > self.most_bytes
                if (taken and too_much) or (parcel.ordered and others_in_flight):
                    break
                taken.append(parcel)
            self.parcels.popleft()
        if not taken:
            self.ready.clear()
        return taken

    def prune(self, pending: Container[str]) -> set[str]:
        """Drops the tasks that no caller waits for any longer, and returns their ids."""
        before = {task_id for parcel in self.parcels for task_id in parcel.task_ids}
        self.parcels = deque(wanted(self.parcels, pending))
        return before - {task_id for parcel in self.parcels for task_id in parcel.task_ids}

    def refuse_all(self, error: FleetError) -> None:
        """Refuses everything: nothing will be sent any longer."""
        while self.parcels:
            self.parcels.popleft().refuse(error)


class Submissions:
    """Takes the tasks of users. Every task gets a new id, unless the user gave it one."""

    def __init__(
        self,
        submitter: str,
        prefix: str,
        pending: Pending,
        outgoing: Outgoing,
        calls: SchedulerCalls,
        *,
        seconds: float,
        give_up: Callable[[Iterable[str]], None],
    ) -> None:
        """`seconds`: the longest wait for a receipt; `give_up` cancels tasks that are no longer waited for."""
        self._encoder = Encoder(submitter)
        self._prefix = prefix
        self._pending = pending
        self._outgoing = outgoing
        self._calls = calls
        self._seconds = seconds
        self._give_up = give_up
        self._receipts: set[asyncio.Future[None]] = set()
        self._count = itertools.count(1)

    def each(self, requests: Iterable[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Submits tasks that are accepted or refused one by one; the sink gets one outcome for every index."""
        self._calls.check()
        parcel = Parcel()
        for index, request in requests:
            try:
                task_id, task, arrays = self._encoded(request, sink)
            except FleetError as error:
                sink.settle([refused(_id_of(request), index, error)])
                continue
            parcel = self._outgoing.pack(parcel, task_id, task)
            if request.task_id or request.dependencies:
                self._mark(parcel, request)
            self._pending.add(task_id, index, sink, task)
            if arrays or request.dependencies:
                self._use(request, task_id, arrays)
        if parcel.tasks:
            self._outgoing.put(parcel)

    async def each_large(self, requests: Sequence[tuple[int, TaskRequest]], sink: Sink) -> None:
        """Submits tasks with large arrays, which a thread writes."""
        arrays = self._pending.arrays
        if arrays is None:
            self.each(requests, sink)
            return
        async with arrays.written(requests) as written:
            self.each(written, sink)

    async def whole(self, requests: Sequence[TaskRequest], sink: Sink) -> list[str]:
        """The ids, once the scheduler has accepted all; an error when it has accepted none."""
        self._calls.check()
        parcel = Parcel(receipt=asyncio.get_running_loop().create_future())
        arrays: list[frozenset[str]] = []
        try:
            for request in requests:
                task_id, task, names = self._encoded(request)
                parcel.add(task_id, task)
                arrays.append(names)
                self._mark(parcel, request)
            _check_size(parcel, self._outgoing.most_bytes)
        except FleetError:
            for request, names in zip(requests, arrays, strict=False):
                self._unsent(request, names)
            raise
        new = []
        for request, task_id, task, names in zip(requests, parcel.task_ids, parcel.tasks, arrays, strict=True):
            if not self._pending.waits(sink, task_id):
                self._pending.add(task_id, 0, sink, task)
                new.append(task_id)
            if names or request.dependencies:
                self._use(request, task_id, names)
        self._outgoing.put(parcel)
        try:
            await self._receipt(parcel)
        except BaseException:
            self._pending.forget(new)
            raise
        return parcel.task_ids

    def end(self, error: FleetError) -> None:
        """Ends every wait for a receipt: none comes any longer."""
        for receipt in self._receipts:
            if not receipt.done():
                receipt.set_exception(error)

    def new_id(self) -> str:
        """An id that no other task has; from any thread."""
        return f"{self._prefix}{next(self._count)}"

    def _encoded(self, request: TaskRequest, sink: Sink | None = None) -> tuple[str, bytes, frozenset[str]]:
        """Id, task and the blobs it refers to. `sink` must not wait for this id already."""
        if not isinstance(request, TaskRequest):
            raise InvalidInput(f"a task must be a TaskRequest, got {request!r:.100}", reason="INVALID_TASK")
        _check_parts(request)
        task_id = request.task_id or self.new_id()
        if sink is not None and request.task_id and self._pending.waits(sink, task_id):
            raise InvalidInput(f'task id "{task_id}" is given twice in one call', reason="DUPLICATE_TASK_ID")
        names: frozenset[str] = _NO_NAMES
        sent = request
        if request.tensors and self._pending.arrays is not None:
            sent, names = self._pending.arrays.without(request)
        try:
            task = self._encoder.task(sent, task_id)
            if len(task) > self._outgoing.most_bytes:
                raise InvalidInput(
                    f"the task has {len(task)} bytes; a request holds at most {self._outgoing.most_bytes}"
                    " (the scheduler's listen.max_message_bytes, or message_bytes of ClientConfig)",
                    reason="PAYLOAD_TOO_LARGE",
                )
        except FleetError:
            self._unsent(request, names)
            raise
        return task_id, task, names

    def _use(self, request: TaskRequest, task_id: str, names: frozenset[str]) -> None:
        if self._pending.arrays is not None:
            self._pending.arrays.use(task_id, names, request.dependencies)

    def _unsent(self, request: TaskRequest, names: frozenset[str]) -> None:
        """Releases the arrays that were written for a task."""
        if names and self._pending.arrays is not None:
            self._pending.arrays.give_up(written_for(request, names))

    async def _receipt(self, parcel: Parcel) -> None:
        assert parcel.receipt is not None
        seconds = self._seconds
        self._receipts.add(parcel.receipt)
        try:
            async with asyncio.timeout(seconds):
                await parcel.receipt
        except TimeoutError:
            # The scheduler may still accept it.
            self._give_up(parcel.task_ids)
            raise DeadlineExceeded(
                f"the scheduler at {self._calls.address} accepted no tasks within {seconds:g} s",
                address=self._calls.address,
            ) from None
        except asyncio.CancelledError:
            self._give_up(parcel.task_ids)
            raise
        finally:
            self._receipts.discard(parcel.receipt)

    def _mark(self, parcel: Parcel, request: TaskRequest) -> None:
        if request.task_id and not request.task_id.startswith(self._prefix):
            parcel.chosen_ids.append(request.task_id)
        if request.dependencies:
            parcel.ordered = True


def _id_of(request: object) -> str:
    return request.task_id if isinstance(request, TaskRequest) else ""


def _check_parts(request: TaskRequest) -> None:
    """What would otherwise be used before the encoder refuses it."""
    if not isinstance(request.task_id, str):
        raise InvalidInput(f"task_id is {request.task_id!r:.60}; it must be text", reason="INVALID_TASK")
    if request.tensors and not isinstance(request.tensors, Mapping):
        raise InvalidInput(
            f"tensors is {request.tensors!r:.60}; it must be a mapping of names to arrays", reason="INVALID_TASK"
        )


def _check_size(parcel: Parcel, limit_bytes: int) -> None:
    if len(parcel.tasks) > TASKS_PER_REQUEST:
        raise InvalidInput(
            f"{len(parcel.tasks)} tasks are given at once; the limit is {TASKS_PER_REQUEST}"
            " (execute_parallel, as_completed and map take any number)",
            reason="TOO_MANY_TASKS",
        )
    if parcel.size > limit_bytes:
        raise InvalidInput(
            f"the tasks have {parcel.size} bytes; a request holds at most {limit_bytes}"
            " (the scheduler's listen.max_message_bytes, or message_bytes of ClientConfig)",
            reason="PAYLOAD_TOO_LARGE",
        )


class Encoder:
    """Encodes the tasks of one submitter. Heads are kept, because few differ."""

    def __init__(self, submitter: str) -> None:
        self._submitter = submitter
        self._heads: dict[tuple[object, ...], bytes] = {}

    def task(self, request: TaskRequest, task_id: str) -> bytes:
        """One `tasks` field of a SubmitTaskStreamRequest; InvalidInput names the part that cannot be sent."""
        try:
            name = task_id.encode()
            spec = _TASK_ID + varint(len(name)) + name + self._head(request)
            if request.parameters or request.tensors or request.dependencies:
                spec += _particulars(request)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidInput(f"{request!r:.200} cannot be submitted: {error}", reason="INVALID_TASK") from error
        size = len(spec)
        return _TASKS + (SMALL[size] if size < SMALL_NUMBERS else varint(size)) + spec

    def _head(self, request: TaskRequest) -> bytes:
        placement = request.placement
        if placement.labels:
            return self._encoded_head(request)
        key = (
            request.kind,
            request.priority,
            request.queue_timeout,
            request.run_timeout,
            request.max_attempts,
            placement.node_id,
        )
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _HEADS_KEPT:
                self._heads.clear()
            head = self._heads[key] = self._encoded_head(request)
        return head

    def _encoded_head(self, request: TaskRequest) -> bytes:
        if not isinstance(request.kind, str) or not request.kind:
            raise InvalidInput(
                f"kind is {request.kind!r}; it must be the name of a handler, e.g. echo", reason="MISSING_KIND"
            )
        if request.priority not in _PRIORITIES:
            raise InvalidInput(
                f"priority is {request.priority!r}; it goes from 1 (BACKGROUND) to 5 (CRITICAL)",
                reason="UNKNOWN_PRIORITY",
            )
        if not 0 <= request.max_attempts <= _MOST_ATTEMPTS:
            raise InvalidInput(
                f"max_attempts is {request.max_attempts!r}; it must be 0 (the scheduler's default) to {_MOST_ATTEMPTS}",
                reason="INVALID_ATTEMPTS",
            )
        spec = pb.TaskSpec(
            kind=request.kind,
            priority=pb.Priority.ValueType(request.priority),
            max_attempts=request.max_attempts,
            submitter=self._submitter,
        )
        if request.placement.node_id or request.placement.labels:
            spec.placement.CopyFrom(_placement(request.placement))
        if request.queue_timeout is not None:
            spec.queue_timeout.CopyFrom(_duration("queue_timeout", request.queue_timeout, least=0.0))
        if request.run_timeout is not None:
            spec.run_timeout.CopyFrom(_duration("run_timeout", request.run_timeout, least=0.001))
        return spec.SerializeToString()


def _particulars(request: TaskRequest) -> bytes:
    """The part that differs from task to task: payload and dependencies."""
    parts = []
    if request.parameters or request.tensors:
        payload = payload_to_proto(request.parameters, request.tensors).SerializeToString()
        parts += [_PAYLOAD, varint(len(payload)), payload]
    if request.dependencies:
        parts.append(_dependencies(request.dependencies))
    return b"".join(parts)


def _placement(placement: Placement) -> pb.Placement:
    return pb.Placement(node_id=placement.node_id, labels=dict(placement.labels))


def _duration(name: str, seconds: float, *, least: float) -> Duration:
    if not least <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(
            f"{name} is {seconds!r} s; it must be {least:g} s to {_LONGEST_SECONDS:g} s", reason="INVALID_TIMEOUT"
        )
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def _dependencies(task_ids: Sequence[str]) -> bytes:
    if isinstance(task_ids, str):
        raise InvalidInput(f"dependencies is the text {task_ids!r}; it must be a list of ids", reason="INVALID_TASK")
    for task_id in task_ids:
        if not isinstance(task_id, str):
            raise InvalidInput(f"dependencies has {task_id!r:.60}; every id must be text", reason="INVALID_TASK")
    return pb.TaskSpec(dependencies=task_ids).SerializeToString()
