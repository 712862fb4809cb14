"""A fake of the scheduler for tests of its clients: a real servicer that ends tasks as a test tells it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.errors import FleetError, NotFound
from parlmesh.rpc import status_from_error
from parlmesh.rpc.server import Service
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server
from parlmesh.wire import payload_to_proto

_DEADLINE_SECONDS = 60.0
_Context = grpc.aio.ServicerContext[Any, Any]
# A stream's next message: an outcome, a receipt, terms, the status it breaks with, or None for its end.
_Queue = asyncio.Queue[task_pb2.Outcome | status_pb2.Status | pb.StreamTerms | grpc.StatusCode | None]


def succeeded(spec: task_pb2.TaskSpec, result: Mapping[str, Any] | None = None) -> task_pb2.Outcome:
    """A success; without a result, the task's own payload is returned."""
    payload = spec.payload if result is None else payload_to_proto(result)
    return task_pb2.Outcome(
        task_id=spec.task_id, state=task_pb2.TASK_STATE_SUCCEEDED, result=payload, attempts=1, actor_id="fake-0"
    )


def failed(spec: task_pb2.TaskSpec, reason: str, message: str) -> task_pb2.Outcome:
    """A failure."""
    failure = task_pb2.Failure(reason=reason, message=message)
    return task_pb2.Outcome(
        task_id=spec.task_id, state=task_pb2.TASK_STATE_FAILED, failure=failure, attempts=1, actor_id="fake-0"
    )


class FakeTasks(SchedulerServiceServicer):
    """Accepts tasks, ends those for which `run` returns an outcome, and leaves the others to the test.

    `refuse` is called for every task of a request and may return an error that refuses the whole request.
    """

    def __init__(self, run: Callable[[task_pb2.TaskSpec], task_pb2.Outcome | None] = succeeded) -> None:
        self.run = run
        self.refuse: Callable[[task_pb2.TaskSpec], FleetError | None] = lambda spec: None
        self.requests: list[list[str]] = []
        self.specs: dict[str, task_pb2.TaskSpec] = {}
        self.outcomes: dict[str, task_pb2.Outcome] = {}
        self.cancelled: list[str] = []
        self.statistics = pb.GetStatisticsResponse()
        self.actors: list[pb.Actor] = []
        self.commands: list[pb.UpdateActorsRequest] = []
        self.most_unfinished = 0
        self.memory_id = 0
        """Sent to clients; 0 acts like an older scheduler, which has none."""
        self.remembers_seconds = 3600
        self.message_bytes = 0
        self.hold: asyncio.Event | None = None
        """Answers to SubmitTasks wait for this event; the tasks end before it, and watchers are not told."""
        self._watches: dict[_Queue, pb.WatchTasksRequest] = {}
        self._changed = asyncio.Condition()

    @property
    def service(self) -> Service:
        """To be served."""
        name = "parlmesh.v1.SchedulerService"
        return Service(name, lambda server: add_SchedulerServiceServicer_to_server(self, server))

    @property
    def unfinished(self) -> list[str]:
        """Accepted tasks without an outcome, in order."""
        return [task_id for task_id in self.specs if task_id not in self.outcomes]

    @property
    def watches(self) -> int:
        """Number of open streams that get outcomes."""
        return len(self._watches)

    async def until(self, predicate: Callable[[], bool]) -> None:
        """Waits for calls of the client until the predicate holds."""
        async with asyncio.timeout(_DEADLINE_SECONDS), self._changed:
            await self._changed.wait_for(predicate)

    async def finish(self, outcome: task_pb2.Outcome) -> None:
        """Ends a task and tells all its watchers."""
        self.outcomes[outcome.task_id] = outcome
        submitter = self.specs[outcome.task_id].submitter
        for queue, request in self._watches.items():
            if outcome.task_id in request.task_ids or (not request.task_ids and request.submitter == submitter):
                queue.put_nowait(outcome)
        await self._notify()

    async def end_watches(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        """Breaks all current streams; new ones are not affected."""
        broken = list(self._watches)
        for queue in broken:
            queue.put_nowait(code)
        await self.until(lambda: not any(queue in self._watches for queue in broken))

    def forget(self, task_ids: Iterable[str] | None = None) -> None:
        """Loses the named tasks, or all, like a scheduler without a store that restarts."""
        for task_id in list(self.specs) if task_ids is None else task_ids:
            del self.specs[task_id]
            self.outcomes.pop(task_id, None)

    async def SubmitTasks(self, request: pb.SubmitTasksRequest, context: _Context) -> pb.SubmitTasksResponse:
        """All or none."""
        self.requests.append([spec.task_id for spec in request.tasks])
        await self._notify()
        for spec in request.tasks:
            error = self.refuse(spec)
            if error is not None:
                raise error
        new = [spec for spec in request.tasks if spec.task_id not in self.specs]
        self.specs.update((spec.task_id, spec) for spec in new)
        self.most_unfinished = max(self.most_unfinished, len(self.specs) - len(self.outcomes))
        for spec in new:
            outcome = self.run(spec)
            if outcome is not None and self.hold is None:
                await self.finish(outcome)
            elif outcome is not None:
                self.outcomes[spec.task_id] = outcome
        await self._notify()
        if self.hold is not None:
            await self.hold.wait()
        return pb.SubmitTasksResponse(task_ids=[spec.task_id for spec in request.tasks])

    async def SubmitTaskStream(
        self, request_iterator: AsyncIterator[pb.SubmitTaskStreamRequest], context: _Context
    ) -> AsyncIterator[pb.SubmitTaskStreamResponse]:
        """Treats every message as a SubmitTasks call, and sends the outcomes of the followed submitter."""
        queue: _Queue = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, context, queue))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, grpc.StatusCode):
                    await context.abort(item, "as the test wishes")
                elif isinstance(item, pb.StreamTerms):
                    yield pb.SubmitTaskStreamResponse(terms=item, receipts=[status_pb2.Status()])
                elif isinstance(item, task_pb2.Outcome):
                    yield pb.SubmitTaskStreamResponse(outcomes=[item])
                else:
                    yield pb.SubmitTaskStreamResponse(receipts=[item])
        finally:
            reader.cancel()
            self._watches.pop(queue, None)
            await self._notify()

    async def _read(
        self, requests: AsyncIterator[pb.SubmitTaskStreamRequest], context: _Context, queue: _Queue
    ) -> None:
        last: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            async for request in requests:
                if request.follow:
                    self._watches[queue] = pb.WatchTasksRequest(submitter=request.follow)
                    await self._notify()
                last = group.create_task(self._give_receipt(request, context, queue, last))
        queue.put_nowait(None)

    async def _give_receipt(
        self,
        request: pb.SubmitTaskStreamRequest,
        context: _Context,
        queue: _Queue,
        last: asyncio.Task[None] | None,
    ) -> None:
        receipt: status_pb2.Status | pb.StreamTerms = (
            await self._receipt(request, context) if request.tasks else status_pb2.Status()
        )
        if last is not None:
            await last
        queue.put_nowait(self._terms() if request.follow else receipt)

    def _terms(self) -> pb.StreamTerms:
        terms = pb.StreamTerms(memory_id=self.memory_id, message_bytes=self.message_bytes)
        terms.remembers.FromNanoseconds(round(self.remembers_seconds * 1e9))
        return terms

    async def _receipt(self, request: pb.SubmitTaskStreamRequest, context: _Context) -> status_pb2.Status:
        try:
            await self.SubmitTasks(pb.SubmitTasksRequest(tasks=request.tasks), context)
        except FleetError as error:
            return status_from_error(error)
        return status_pb2.Status()

    async def GetTask(self, request: pb.GetTaskRequest, context: _Context) -> pb.GetTaskResponse:
        """The task, with its outcome if it has one."""
        if request.task_id not in self.specs:
            raise NotFound(f'there is no task "{request.task_id}"', task_id=request.task_id)
        return pb.GetTaskResponse(task=self._task(request.task_id))

    async def ListTasks(self, request: pb.ListTasksRequest, context: _Context) -> pb.ListTasksResponse:
        """Everything on one page."""
        return pb.ListTasksResponse(tasks=[self._task(task_id) for task_id in self.specs])

    async def WatchTasks(
        self, request: pb.WatchTasksRequest, context: _Context
    ) -> AsyncIterator[pb.WatchTasksResponse]:
        """Existing outcomes first."""
        missing = [task_id for task_id in request.task_ids if task_id not in self.specs]
        if missing and not (request.skip_unknown and self.memory_id):
            raise NotFound(f'there is no task "{missing[0]}"', task_id=missing[0])
        queue: _Queue = asyncio.Queue()
        for task_id in request.task_ids:
            if task_id in self.outcomes:
                queue.put_nowait(self.outcomes[task_id])
        self._watches[queue] = request
        waiting = set(request.task_ids) - set(missing)
        try:
            await context.send_initial_metadata(())
            if missing:
                yield pb.WatchTasksResponse(unknown_task_ids=missing)
            await self._notify()
            while not request.task_ids or waiting:
                item = await queue.get()
                if isinstance(item, grpc.StatusCode):
                    await context.abort(item, "as the test wishes")
                assert isinstance(item, task_pb2.Outcome)
                yield pb.WatchTasksResponse(outcomes=[item])
                waiting.discard(item.task_id)
        finally:
            del self._watches[queue]
            await self._notify()

    async def CancelTasks(self, request: pb.CancelTasksRequest, context: _Context) -> pb.CancelTasksResponse:
        """Cancels unfinished tasks."""
        self.cancelled += request.task_ids
        stopped = [task_id for task_id in request.task_ids if task_id in self.unfinished]
        for task_id in stopped:
            failure = task_pb2.Failure(reason="CANCELLED", message="cancelled on request")
            await self.finish(task_pb2.Outcome(task_id=task_id, state=task_pb2.TASK_STATE_CANCELLED, failure=failure))
        await self._notify()
        return pb.CancelTasksResponse(cancelled_task_ids=stopped)

    async def ExplainTask(self, request: pb.ExplainTaskRequest, context: _Context) -> pb.ExplainTaskResponse:
        """Says whether the task is known."""
        return pb.ExplainTaskResponse(explanation=f'task "{request.task_id}" is {request.task_id in self.specs}')

    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: _Context) -> pb.GetStatisticsResponse:
        """What the test has set."""
        return self.statistics

    async def ListActors(self, request: pb.ListActorsRequest, context: _Context) -> pb.ListActorsResponse:
        """What the test has set."""
        return pb.ListActorsResponse(actors=self.actors)

    async def UpdateActors(self, request: pb.UpdateActorsRequest, context: _Context) -> pb.UpdateActorsResponse:
        """Records the command."""
        self.commands.append(request)
        return pb.UpdateActorsResponse(actors=[actor for actor in self.actors if actor.actor_id in request.actor_ids])

    async def RebalanceTasks(self, request: pb.RebalanceTasksRequest, context: _Context) -> pb.RebalanceTasksResponse:
        """Moves all tasks without an outcome."""
        return pb.RebalanceTasksResponse(moved_tasks=len(self.unfinished))

    async def GetTrace(self, request: pb.GetTraceRequest, context: _Context) -> pb.GetTraceResponse:
        """An empty trace that contains the window."""
        return pb.GetTraceResponse(trace_json=f'{{"traceEvents": [], "seconds": {request.seconds}}}')

    def _task(self, task_id: str) -> task_pb2.Task:
        outcome = self.outcomes.get(task_id)
        state = task_pb2.TASK_STATE_RUNNING if outcome is None else outcome.state
        return task_pb2.Task(spec=self.specs[task_id], state=state, outcome=outcome)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
