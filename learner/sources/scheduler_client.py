"""The learner as the scheduler's client: submits tasks, follows their outcomes, survives the scheduler's restarts.

Why it does not use `parlmesh.client`: docs/decisions/0041-a-service-that-submits.md.
"""

import asyncio
import functools
import random
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc
import grpc.aio

from parlmesh.errors import FleetError, NotFound
from parlmesh.rpc import Backoff, error_from_rpc, pages
from parlmesh.telemetry import get_logger
from parlmesh.v1 import scheduler_service_pb2 as scheduler_pb
from parlmesh.v1 import task_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

log = get_logger("parlmesh.learner")

_CALL_SECONDS = 10.0
# How often to ask for outcomes that a broken stream may have lost.
_SWEEP_SECONDS = 5.0
# A scheduler accepts at most 10,000.
_TASKS_PER_REQUEST = 1_000
# What follows the submitter in a task's id; older learners had no last part.
_IN_A_LIFE = re.compile(r"[0-9a-f]{8}-\d+(-[0-9a-f]{8})?")
_UNFINISHED = (pb.TASK_STATE_WAITING, pb.TASK_STATE_QUEUED, pb.TASK_STATE_RUNNING)


@dataclass(slots=True)
class _Lane:
    """Tasks of one kind to be submitted, kept apart so that a refused kind holds up no other."""

    unsent: list[pb.TaskSpec] = field(default_factory=list)
    # Being submitted; the scheduler may not know them yet.
    sending: set[str] = field(default_factory=set)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class Dispatcher:
    """Owns the tasks it submitted until their outcome is known. `run` must be running for anything to happen."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        submitter: str,
        on_outcome: Callable[[pb.Outcome], None],
        on_obstacle: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`on_obstacle` is called with the reason why tasks cannot be submitted now, or an empty text when they can
        again; `refused` has the reasons by kind."""
        self._stub = SchedulerServiceStub(channel)
        self._submitter = submitter
        self._on_outcome = on_outcome
        self._on_obstacle = on_obstacle
        # New at every start: ids must not repeat those from before a restart.
        self._life = secrets.token_hex(4)
        self._count = 0
        self._lanes: dict[str, _Lane] = {}
        self._group: asyncio.TaskGroup | None = None
        self.refused: dict[str, str] = {}
        # Tasks that are not known to have ended, submitted or not.
        self._pending: set[str] = set()

    def submit(self, specs: Sequence[pb.TaskSpec]) -> list[str]:
        """Names the tasks and hands them to `run`; never waits."""
        for spec in specs:
            self._count += 1
            # No actor can guess the id of another actor's task.
            spec.task_id = f"{self._submitter}-{self._life}-{self._count}-{secrets.token_hex(4)}"
            spec.submitter = self._submitter
            self._pending.add(spec.task_id)
            lane = self._lane(spec.kind)
            lane.unsent.append(spec)
            lane.filled.set()
        return [spec.task_id for spec in specs]

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._retried(self._cancel_leftovers, "cancel_leftovers")
        async with asyncio.TaskGroup() as group:
            self._group = group
            for kind, lane in self._lanes.items():
                group.create_task(self._send(kind, lane))
            group.create_task(self._watch())
            group.create_task(self._sweep())

    async def cancel(self, task_ids: Sequence[str]) -> None:
        """Cancels the tasks it can; the others end by themselves."""
        unsent = self._unsent()
        self._pending.difference_update(task_ids)
        for lane in self._lanes.values():
            lane.unsent = [spec for spec in lane.unsent if spec.task_id in self._pending]
        await self._cancel([task_id for task_id in task_ids if task_id not in unsent])

    async def _cancel(self, task_ids: Sequence[str]) -> None:
        if not task_ids:
            return
        try:
            await self._stub.CancelTasks(scheduler_pb.CancelTasksRequest(task_ids=task_ids), timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if isinstance(error, NotFound) and len(task_ids) > 1:
                # One unknown task makes the scheduler refuse them all.
                half = len(task_ids) // 2
                await self._cancel(task_ids[:half])
                await self._cancel(task_ids[half:])
            elif not isinstance(error, NotFound):
                log.warning("cancel_failed", error=error.message)

    def _lane(self, kind: str) -> _Lane:
        lane = self._lanes.get(kind)
        if lane is None:
            lane = self._lanes[kind] = _Lane()
            if self._group is not None:
                self._group.create_task(self._send(kind, lane))
        return lane

    def _unsent(self) -> set[str]:
        return {spec.task_id for lane in self._lanes.values() for spec in lane.unsent}

    async def _send(self, kind: str, lane: _Lane) -> None:
        while True:
            await lane.filled.wait()
            lane.filled.clear()
            while lane.unsent:
                await self._send_some(kind, lane)

    async def _send_some(self, kind: str, lane: _Lane) -> None:
        specs, lane.unsent = lane.unsent[:_TASKS_PER_REQUEST], lane.unsent[_TASKS_PER_REQUEST:]
        lane.sending = {spec.task_id for spec in specs}

        async def submit() -> None:
            wanted = [spec for spec in specs if spec.task_id in self._pending]
            if wanted:
                # Safe to repeat: the tasks carry ids.
                request = scheduler_pb.SubmitTasksRequest(tasks=wanted)
                await self._stub.SubmitTasks(request, timeout=_CALL_SECONDS)

        await self._retried(submit, "submit", kind)
        # Tasks cancelled in the meantime may have arrived with an attempt whose answer was lost.
        unwanted, lane.sending = sorted(lane.sending - self._pending), set()
        await self._cancel(unwanted)

    async def _watch(self) -> None:
        backoff = Backoff(rng=random.Random())  # noqa: S311 - jitter
        while True:
            try:
                call = self._stub.WatchTasks(scheduler_pb.WatchTasksRequest(submitter=self._submitter))
                async for answer in call:
                    backoff.reset()
                    for outcome in answer.outcomes:
                        self._settle(outcome)
            except grpc.aio.AioRpcError as error:
                log.warning("watch_broken", error=error_from_rpc(error).message)
            await asyncio.sleep(backoff.next())

    async def _sweep(self) -> None:
        """Asks for every task that was already pending at the last sweep."""
        before: set[str] = set()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            sending = {task_id for lane in self._lanes.values() for task_id in lane.sending}
            for task_id in (before & self._pending) - self._unsent() - sending:
                try:
                    await self._ask(task_id)
                except FleetError as error:
                    log.warning("sweep_failed", error=error.message)
                    break
            before = set(self._pending)

    async def _ask(self, task_id: str) -> None:
        try:
            answer = await self._stub.GetTask(scheduler_pb.GetTaskRequest(task_id=task_id), timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as rpc_error:
            error = error_from_rpc(rpc_error)
            if not isinstance(error, NotFound):
                raise error from rpc_error
            failure = pb.Failure(reason="TASK_LOST", message="the scheduler does not know the task", retryable=True)
            self._settle(pb.Outcome(task_id=task_id, state=pb.TASK_STATE_FAILED, failure=failure))
            return
        if answer.task.state not in _UNFINISHED:
            self._settle(answer.task.outcome)

    async def _cancel_leftovers(self) -> None:
        """Cancels this submitter's tasks from before a restart, which ask for policies that no longer exist."""
        request = scheduler_pb.ListTasksRequest(states=_UNFINISHED, page_size=1_000)
        async for page in pages(functools.partial(self._stub.ListTasks, timeout=_CALL_SECONDS), request):
            old = [task.spec.task_id for task in page.tasks if self.is_leftover(task.spec.task_id)]
            if old:
                await self._stub.CancelTasks(scheduler_pb.CancelTasksRequest(task_ids=old), timeout=_CALL_SECONDS)
                log.info("leftovers_cancelled", tasks=len(old))

    def is_leftover(self, task_id: str) -> bool:
        """Whether a task is this submitter's, from before a restart."""
        rest = task_id.removeprefix(f"{self._submitter}-")
        return rest != task_id and not rest.startswith(f"{self._life}-") and _IN_A_LIFE.fullmatch(rest) is not None

    def _settle(self, outcome: pb.Outcome) -> None:
        if outcome.task_id in self._pending:
            self._pending.discard(outcome.task_id)
            try:
                self._on_outcome(outcome)
            except Exception as error:
                # One odd answer must not end the watch over all others.
                log.exception("outcome_unusable", error, task_id=outcome.task_id)

    def _tell(self, kind: str, sentence: str) -> None:
        if sentence:
            self.refused[kind] = sentence
        else:
            self.refused.pop(kind, None)
        self._on_obstacle("; ".join(dict.fromkeys(self.refused.values())))

    async def _retried(self, call: Callable[[], Awaitable[object]], name: str, kind: str = "") -> None:
        """Repeats a call until the scheduler accepts it: it may accept a refused call later, when an actor with the
        kind is back or a limit was raised."""
        backoff = Backoff(rng=random.Random())  # noqa: S311 - jitter
        while True:
            try:
                await call()
                self._tell(kind, "")
                return
            except grpc.aio.AioRpcError as rpc_error:
                error = error_from_rpc(rpc_error)
                self._tell(kind, f"the scheduler takes no tasks: {error.message}")
                delay = max(backoff.next(), getattr(error, "retry_after_seconds", 0.0))
                log.warning(
                    "scheduler_unavailable",
                    call=name,
                    reason=error.reason,
                    error=error.message,
                    retry_seconds=round(delay, 3),
                )
                await asyncio.sleep(delay)
