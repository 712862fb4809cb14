"""PARLController: submit tasks to a fleet and get outcomes back, like asyncio.gather over many machines.

async with PARLController() as controller:
    await controller.initialize(num_workers=100)
    outcomes = await controller.execute_parallel([TaskRequest("echo", {"n": n}) for n in range(10_000)])
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, overload

import grpc.aio

from parlmesh.argument_values import check_array
from parlmesh.blobs import Reference
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, Unavailable
from parlmesh.function_tasks import FunctionTask, stop_import
from parlmesh.rpc import open_channel
from parlmesh.security import SecurityConfig
from parlmesh.types import Array
from parlmesh.v1 import scheduler_service_pb2 as pb

from .config import ClientConfig, seconds_in
from .connection import Connection
from .connection.pending_outcomes import UnclaimedOutcomes
from .feed import lent
from .fleet_info import PARLStats, stats_from_proto
from .function_calls import Call, TaskFuture, call_of, requests_of, values_of
from .learner.experience_upload import ExperienceUploads, UploadedExperience
from .learner.learner_calls import PolicyUpdate, pause_run, resume_run, wait_for_policy
from .learner.own_steps import Step, check_steps
from .local_fleet import LocalFleet, check_not_importing
from .map_and_gather import IN_FLIGHT, Run, enumerated, listed
from .operator_calls import FleetOperations
from .outcomes import Outcome
from .task_request import ANYWHERE, NOTHING, Placement, Priority, TaskRequest, owned, with_own_arrays
from .task_watch import watched_outcome

P = ParamSpec("P")
R = TypeVar("R")

NO_SECURITY = SecurityConfig()
DEFAULTS = ClientConfig()
_LOOK_SECONDS = 0.01


class PARLController(FleetOperations):
    """Talks to one fleet: a running one (`connect`), or its own (`initialize`). One controller is enough for a program.

    Use it with `async with`, or end it with `close`. All methods belong to one event loop.
    """

    def __init__(
        self,
        address: str = "",
        *,
        learner: str = "",
        security: SecurityConfig = NO_SECURITY,
        config: ClientConfig = DEFAULTS,
    ) -> None:
        self._address = address
        self._learner = learner
        self._security = security
        self._config = config
        self._unclaimed = UnclaimedOutcomes(most_outcomes=config.unclaimed_outcomes, most_bytes=config.unclaimed_bytes)
        self._opening = asyncio.Lock()
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fleet: LocalFleet | None = None
        self._learner_channel: grpc.aio.Channel | None = None
        self._experience: dict[str, ExperienceUploads] = {}

    @property
    def address(self) -> str:
        """Where the scheduler listens, for other programs; empty while there is no fleet."""
        return self._address

    @classmethod
    async def connect(
        cls,
        address: str,
        *,
        learner: str = "",
        security: SecurityConfig = NO_SECURITY,
        config: ClientConfig = DEFAULTS,
    ) -> Self:
        """A controller of the fleet whose scheduler listens at `address`; raises Unavailable if none answers."""
        controller = cls(address, learner=learner, security=security, config=config)
        await controller._open(address)
        return controller

    async def initialize(
        self,
        num_workers: int = 100,
        *,
        actor: Mapping[str, Any] | None = None,
        scheduler: Mapping[str, Any] | None = None,
        processes: int | None = None,
    ) -> int:
        """Starts a fleet on this machine and returns the number of READY workers; harmless if there is a fleet.

        `actor` and `scheduler` hold settings of these services. The workers are spread over a few
        processes; all of them end with this one.
        """
        most = self._config.max_workers
        if not isinstance(num_workers, int) or not 1 <= num_workers <= most:
            raise InvalidInput(f"num_workers is {num_workers!r}; it must be 1 to {most}", reason="INVALID_WORKERS")
        self._check_loop()
        check_not_importing()
        async with self._opening:
            if self._connection is None:
                await self._start(num_workers, actor, scheduler, processes)
        return (await self.get_statistics()).ready_workers

    @property
    def trouble(self) -> str:
        """Why a process of the local fleet is no longer restarted; empty if all are."""
        return self._fleet.trouble if self._fleet is not None else ""

    async def close(self) -> None:
        """Ends every wait, and the local fleet if there is one. A running fleet continues with tasks it accepted."""
        if self._loop is not None and self._loop.is_closed():
            return  # everything ended with it
        self._check_loop()
        try:
            if self._connection is not None:
                await self._connection.close()
            if self._learner_channel is not None:
                await self._learner_channel.close()
        finally:
            if self._fleet is not None:
                await self._fleet.stop()

    async def __aenter__(self) -> Self:
        if self._address and self._connection is None:
            await self._open(self._address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def submit_task(
        self,
        kind: str | TaskRequest,
        parameters: Mapping[str, Any] = NOTHING,
        tensors: Mapping[str, Array] = NOTHING,
        *,
        priority: Priority = Priority.NORMAL,
        dependencies: Sequence[str] = (),
        placement: Placement = ANYWHERE,
        queue_timeout: float | None = None,
        run_timeout: float | None = None,
        max_attempts: int = 0,
        task_id: str = "",
    ) -> str:
        """Submits one task and returns its id once the scheduler has accepted it.

        If `kind` is a whole TaskRequest, the other arguments are ignored.
        """
        request = (
            kind
            if isinstance(kind, TaskRequest)
            else TaskRequest(
                kind,
                parameters,
                tensors,
                priority=priority,
                dependencies=dependencies,
                placement=placement,
                queue_timeout=queue_timeout,
                run_timeout=run_timeout,
                max_attempts=max_attempts,
                task_id=task_id,
            )
        )
        return (await self.submit_tasks([request]))[0]

    async def submit_tasks(self, requests: Sequence[TaskRequest]) -> list[str]:
        """Submits up to 10,000 tasks, all or none, and returns their ids in the same order."""
        return await self._connected().submissions.whole(requests, self._unclaimed) if requests else []

    async def result(self, task_id: str, timeout: float | None = None) -> Outcome:  # noqa: ASYNC109
        """Waits for the outcome of a task, even one that another client submitted.

        Raises NotFound when there is no such task, and DeadlineExceeded when it has not ended in time; the task then
        continues.
        """
        connection = self._connected()
        seconds = self._seconds(timeout)
        kept = self._unclaimed.claim(task_id)
        if kept is not None:
            return kept
        if connection.pending.waits(self._unclaimed, task_id):
            return await self._unclaimed.wait(task_id, seconds)
        with connection.calls.ending():
            return await watched_outcome(connection, task_id, seconds)

    async def execute_parallel(
        self,
        tasks: Iterable[TaskRequest],
        *,
        limit: int = IN_FLIGHT,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> list[Outcome]:
        """Runs tasks and returns one outcome for each, in the order given; a failure is an error among values.

        At most `limit` are in flight: each outcome lets the next task go out. Tasks without an outcome at the
        deadline are cancelled and come back as errors.
        """
        requests = listed(tasks)
        run = Run(self._connected(), enumerated(requests), limit, self._seconds(timeout))
        return await run.gather(len(requests))

    def as_completed(
        self, tasks: Iterable[TaskRequest], *, limit: int = IN_FLIGHT, timeout: float | None = None
    ) -> AsyncGenerator[Outcome, None]:
        """Runs tasks and yields each outcome as it comes; `outcome.index` says which task's it is.

        An iterator is read only when there is room, so it may be endless. Leaving the loop early cancels the rest once
        the iterator is closed. Raises DeadlineExceeded at the deadline.
        """
        return self._completed(lent(enumerated(tasks), [tasks], owned), limit, timeout)

    def submit(self, function: FunctionTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Runs a function decorated with @parlmesh.task on the fleet; the future has its value or its error.

        Cancelling the future cancels the task. The future of another call may be an argument: the scheduler sends its
        value with the task. Priority and time limits belong to the function: `function.options(priority=…)`.
        """
        return self._future_of(call_of(function, args, kwargs, self._line().submissions.new_id()))

    async def put(self, array: Array) -> Reference:
        """Keeps an array on the fleet, once for all tasks that have the reference as an argument.

        It is kept as long as the reference exists or an unfinished task needs it.
        """
        connection = self._connected()
        check_array(array, "the array")
        with connection.calls.ending():
            return await connection.arrays.put(array)

    async def fetch(self, outcome: Outcome) -> None:
        """Brings the large arrays of an outcome to this host, where `outcome.tensors` reads them.

        Nothing to do on the scheduler's own host, and for the results of decorated functions, which are fetched.
        """
        connection = self._connected()
        with connection.calls.ending():
            await outcome.fetch()

    def _future_of(self, call: TaskRequest) -> TaskFuture:
        """Submits a call that is already a request."""
        return Call(self._connected(), call).future

    @overload
    def map(
        self,
        kind: str,
        parameters: Iterable[Mapping[str, Any]],
        *,
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> AsyncGenerator[Outcome, None]: ...
    @overload
    def map(
        self,
        kind: FunctionTask[..., R],
        parameters: Iterable[Any],
        *more: Iterable[Any],
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> AsyncGenerator[R, None]: ...
    def map(
        self,
        kind: str | FunctionTask[..., Any],
        parameters: Iterable[Any],
        *more: Iterable[Any],
        limit: int = IN_FLIGHT,
        timeout: float | None = None,
        priority: Priority = Priority.NORMAL,
    ) -> AsyncGenerator[Any, None]:
        """Runs one kind with many parameters and yields the outcomes in input order; reads only when there is room.

        A function decorated with @parlmesh.task takes one value of each iterable, as in Python's own `map`, and its
        results are yielded; the first call that fails raises, and the rest is cancelled.
        """
        requests = lent(requests_of(kind, parameters, more, priority), [parameters, *more], with_own_arrays)
        return self._mapped(kind, requests, limit, timeout)

    def _mapped(
        self,
        kind: str | FunctionTask[..., Any],
        requests: Iterator[tuple[int, TaskRequest]],
        limit: int,
        timeout: float | None,
    ) -> AsyncGenerator[Any, None]:
        outcomes = Run(self._connected(), requests, limit, self._seconds(timeout)).in_order()
        return values_of(outcomes) if isinstance(kind, FunctionTask) else outcomes

    def _completed(
        self, requests: Iterator[tuple[int, TaskRequest]], limit: int, timeout: float | None
    ) -> AsyncGenerator[Outcome, None]:
        return Run(self._connected(), requests, limit, self._seconds(timeout)).completed()

    async def get_statistics(self) -> PARLStats:
        """The fleet's numbers, and this client's own."""
        connection = self._connected()
        calls = connection.calls
        message = await calls.call(calls.stub.GetStatistics, pb.GetStatisticsRequest())
        return stats_from_proto(message, replace(connection.counts, dropped_outcomes=self._unclaimed.dropped))

    async def update_policy(
        self,
        experiences: str | Iterable[Step | Sequence[Any]] = (),
        *,
        run_id: str = "",
        timeout: float = 30.0,  # noqa: ASYNC109
    ) -> PolicyUpdate:
        """Uploads steps that this program took itself, then waits until every acting worker acts with the learner's
        newest policy version. Needs the learner's address. Text instead of steps is the run's id.

        Does not wait for training: the first version trained on these steps may be a later one.
        """
        connection = self._connected()
        channel = self._learner_at("update_policy")
        timeout = seconds_in(timeout)
        if isinstance(experiences, str):
            experiences, run_id = (), experiences or run_id
        check_steps(experiences)
        steps = list(experiences)
        uploaded = UploadedExperience()
        with connection.calls.ending():
            if steps:
                uploads = self._experience.setdefault(run_id, ExperienceUploads(channel, run_id))
                uploaded = await uploads.add(steps, seconds=timeout)
            update = await wait_for_policy(channel, self.list_actors, run_id=run_id, seconds=timeout)
        return replace(update, trajectories=uploaded.trajectories, waiting_steps=uploaded.waiting_steps)

    async def pause_run(self, run_id: str = "") -> None:
        """Pauses a run until it is resumed; empty = the learner's only run. Needs the learner's address."""
        await pause_run(self._learner_at("pause_run"), run_id, seconds=self._config.call_seconds)

    async def resume_run(self, run_id: str = "") -> None:
        """Resumes a paused run."""
        await resume_run(self._learner_at("resume_run"), run_id, seconds=self._config.call_seconds)

    def _learner_at(self, wanted_by: str) -> grpc.aio.Channel:
        """The connection to the learner, opened when it is first needed and closed with the controller."""
        if not self._learner:
            raise FailedPrecondition(
                f"{wanted_by} needs a learner; name its address: PARLController(learner=...)", reason="NO_LEARNER"
            )
        if self._learner_channel is None:
            self._learner_channel = open_channel(self._learner, self._security)
        return self._learner_channel

    def _connected(self) -> Connection:
        connection = self._line()
        self._check_loop()
        connection.calls.check()
        return connection

    def _line(self) -> Connection:
        """The connection, for any thread."""
        if self._connection is None:
            raise FailedPrecondition("there is no fleet yet; call initialize() or connect()", reason="NOT_CONNECTED")
        return self._connection

    def _check_loop(self) -> None:
        """A wait on another loop would never end."""
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            what = "has ended" if self._loop.is_closed() else "is another one"
            raise FailedPrecondition(
                f"the event loop that opened this controller {what}; use it within one asyncio.run, or use "
                "parlmesh.client.sync.Controller, which any thread may call",
                reason="OTHER_EVENT_LOOP",
            )

    def _seconds(self, timeout: float | None) -> float:
        return self._config.wait_seconds if timeout is None else seconds_in(timeout)

    async def _open(self, address: str) -> None:
        stop_import()
        channel = open_channel(address, self._security)
        connection = Connection(channel, address, self._config)
        await connection.open()
        self._connection, self._loop, self._address = connection, asyncio.get_running_loop(), address

    async def _start(
        self,
        workers: int,
        actor: Mapping[str, Any] | None,
        scheduler: Mapping[str, Any] | None,
        processes: int | None,
    ) -> None:
        self._fleet = LocalFleet(
            workers,
            learner=self._learner,
            scheduler=scheduler,
            actor=actor,
            processes=processes,
            start_seconds=self._config.start_seconds,
            on_lost=self._fleet_lost,
        )
        try:
            await self._open(await self._fleet.start())
            await self._until_ready(self._fleet)
        except BaseException:
            await self.close()
            self._connection, self._fleet, self._loop, self._address = None, None, None, ""
            raise

    async def _until_ready(self, fleet: LocalFleet) -> None:
        seconds, ready = self._config.start_seconds, 0
        try:
            async with asyncio.timeout(seconds):
                while ready < fleet.workers and not fleet.trouble:
                    await asyncio.sleep(_LOOK_SECONDS)
                    ready = (await self.get_statistics()).ready_workers
        except Unavailable:
            # A lost process ends every call; here the error says why the fleet cannot be started.
            if not fleet.trouble:
                raise
        except TimeoutError:
            raise DeadlineExceeded(f"{ready} of {fleet.workers} workers are ready after {seconds:g} s") from None
        if fleet.trouble:
            raise FailedPrecondition(fleet.trouble, reason="LOCAL_FLEET_FAILED")

    def _fleet_lost(self, reason: str) -> None:
        if self._connection is not None:
            self._connection.fail(Unavailable(reason, reason="LOCAL_FLEET_FAILED"))
