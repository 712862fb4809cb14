"""SchedulerService over gRPC: decode, ask the shell, encode."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from parlmesh import limits
from parlmesh.errors import FleetError, InvalidInput
from parlmesh.rpc import caller, status_from_error
from parlmesh.rpc.server import Service
from parlmesh.rpc.server.service_registration import service_of
from parlmesh.v1 import scheduler_service_pb2 as pb

from ..blob_ledger import client_writer
from ..core.actors.placement import ActorCommand
from ..core.chrome_trace import to_json
from ..core.task import Task
from ..core.task_explanation import explain
from ..shell import Shell
from . import hot_messages, queries
from .leader_redirect import Seat
from .namespaces import Tenant
from .outbox import Outbox, messages
from .task_watches import WatchedNames

Context = Any


class SchedulerServicer:
    """The service that users and the learner call."""

    def __init__(self, seat: Seat, default_run_timeout: float, fleet_kinds: Sequence[str], watched_bytes: int) -> None:
        self._seat = seat
        self._watched = WatchedNames(watched_bytes)
        self._fleet_kinds = frozenset(fleet_kinds)
        self._default_run_timeout = default_run_timeout

    @property
    def _shell(self) -> Shell:
        return self._seat.shell

    @property
    def service(self) -> Service:
        """The service that the server registers."""
        return service_of(
            pb.DESCRIPTOR,
            "SchedulerService",
            self,
            reads_encoded=("SubmitTasks", "SubmitTaskStream"),
            writes_encoded=("SubmitTaskStream", "WatchTasks"),
        )

    def _tenant(self, shell: Shell | None = None) -> Tenant:
        return Tenant((shell or self._shell).core, caller(), self._fleet_kinds)

    def _bound(self, shell: Shell, tasks: Sequence[Task]) -> Tenant:
        """The tenant that submits the tasks, which are bound to its namespace, if any."""
        tenant = self._tenant(shell)
        if tenant.prefix:
            tenant.bind(tasks)
        return tenant

    async def SubmitTasks(self, request: bytes, context: Context) -> pb.SubmitTasksResponse:
        """Reads an encoded SubmitTasksRequest."""
        tasks = hot_messages.tasks(request, caller().name, self._default_run_timeout)
        tenant = self._bound(self._shell, tasks)
        return pb.SubmitTasksResponse(task_ids=await self._shell.submit(tasks, tenant.owner, tenant.writer))

    async def SubmitTaskStream(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Reads encoded SubmitTaskStreamRequests and writes encoded SubmitTaskStreamResponses."""
        # Kept for the whole stream, whichever scheduler leads when it ends.
        shell = self._shell
        with shell.receipts() as outbox, ExitStack() as followed:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(outbox.write_to(context))
                async for request in requests:
                    self._accept(shell, request, outbox, followed)
                    if outbox.closed:
                        # Nothing more is taken from a client that does not read its receipts.
                        await writer
                await shell.committed()
                outbox.end()

    def _accept(self, shell: Shell, data: bytes, outbox: Outbox, followed: ExitStack) -> None:
        """Takes one request of a stream and puts its receipt into the outbox."""
        put, receipts = outbox.put, [hot_messages.ACCEPTED]
        try:
            tasks, follow, patient = hot_messages.submission(data, caller().name, self._default_run_timeout)
            if follow and outbox.more is not None:
                raise InvalidInput("follow is given twice; a stream follows one submitter", reason="FOLLOWS_ALREADY")
            limits.SUBMITTER.check_text(follow)
            tenant = self._bound(shell, tasks)
            shell.accept(tasks, tenant.owner, tenant.writer)
            if follow:
                followed.enter_context(shell.following(tenant.submitter(follow), outbox))
                receipts.insert(0, shell.stream_terms(client_writer(caller())))
            if patient:
                put = outbox.put_patiently
        except DecodeError:
            message = f"a message of {len(data)} bytes cannot be parsed"
            receipts = [hot_messages.receipt(status_from_error(InvalidInput(message, reason="MALFORMED_MESSAGE")))]
        except FleetError as error:
            receipts = [hot_messages.receipt(status_from_error(error))]
        shell.after_commit(partial(put, receipts))

    async def GetTask(self, request: pb.GetTaskRequest, context: Context) -> pb.GetTaskResponse:
        await self._shell.committed()
        return queries.get_task(self._shell.core, self._tenant().task(request.task_id))

    async def ListTasks(self, request: pb.ListTasksRequest, context: Context) -> pb.ListTasksResponse:
        await self._shell.committed()
        return queries.list_tasks(self._shell.core, request, self._tenant().prefix)

    async def WatchTasks(self, request: pb.WatchTasksRequest, context: Context) -> None:
        """Writes encoded WatchTasksResponses."""
        with self._watched.holding(caller(), request.ByteSize(), len(request.task_ids)):
            await self._watch(request, context)

    async def _watch(self, request: pb.WatchTasksRequest, context: Context) -> None:
        shell = self._shell
        tenant = self._tenant(shell)
        named: Sequence[str] = request.task_ids
        unknown: list[str] = []
        if request.skip_unknown and named:
            named, unknown = tenant.seen(named)
        tenant.check(named)
        with shell.watching(named, "" if unknown else tenant.submitter(request.submitter)) as watch:
            # Tells the client that from here on no outcome is missed.
            await context.send_initial_metadata(())
            if unknown:
                await shell.committed()
                for message in messages(hot_messages.unknown(unknown)):
                    await context.write(message)
            while tasks := await watch.take():
                for message in messages(hot_messages.outcomes(tasks)):
                    await context.write(message)

    async def CancelTasks(self, request: pb.CancelTasksRequest, context: Context) -> pb.CancelTasksResponse:
        self._tenant().check(request.task_ids)
        return pb.CancelTasksResponse(cancelled_task_ids=await self._shell.cancel(request.task_ids))

    async def ExplainTask(self, request: pb.ExplainTaskRequest, context: Context) -> pb.ExplainTaskResponse:
        task = self._tenant().task(request.task_id)
        return pb.ExplainTaskResponse(explanation=explain(self._shell.core, task, self._shell.now()))

    async def GetStatistics(self, request: pb.GetStatisticsRequest, context: Context) -> pb.GetStatisticsResponse:
        return queries.statistics(self._shell.core, self._shell.now())

    async def ListActors(self, request: pb.ListActorsRequest, context: Context) -> pb.ListActorsResponse:
        for answer in queries.listing_actors(self._shell.core, request, self._shell.now()):
            if answer is not None:
                return answer
            await asyncio.sleep(0)
        raise AssertionError("a list ends with its answer")

    async def UpdateActors(self, request: pb.UpdateActorsRequest, context: Context) -> pb.UpdateActorsResponse:
        actors = await self._shell.command(
            request.actor_ids, request.node_ids, _command(request.command), request.reason
        )
        return queries.commanded(self._shell.core, actors, self._shell.now())

    async def RebalanceTasks(self, request: pb.RebalanceTasksRequest, context: Context) -> pb.RebalanceTasksResponse:
        return pb.RebalanceTasksResponse(moved_tasks=await self._shell.rebalance())

    async def GetTrace(self, request: pb.GetTraceRequest, context: Context) -> pb.GetTraceResponse:
        core = self._shell.core
        attempts = queries.attempts(core, request, self._shell.now())
        return pb.GetTraceResponse(trace_json=await asyncio.to_thread(to_json, attempts, core.life.wall_offset))


def _command(number: int) -> ActorCommand:
    try:
        return ActorCommand(number)
    except ValueError:
        names = ", ".join(f"{command.value} ({command.name})" for command in ActorCommand)
        raise InvalidInput(f"command {number} is unknown; it is one of {names}", reason="UNKNOWN_COMMAND") from None
