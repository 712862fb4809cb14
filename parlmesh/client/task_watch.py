"""Waits at the scheduler for one task's outcome by id, including a task that another client submitted."""

import asyncio

import grpc.aio

from parlmesh.rpc import error_from_rpc
from parlmesh.v1 import scheduler_service_pb2 as pb

from .connection import Connection
from .connection.pending_outcomes import no_outcome
from .connection.retry import is_temporary
from .outcomes import Outcome

_RETRY_SECONDS = 0.1


async def watched_outcome(connection: Connection, task_id: str, seconds: float) -> Outcome:
    """NotFound when there is no such task; DeadlineExceeded when it has not ended in time; it then continues."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                call = connection.calls.stub.WatchTasks(pb.WatchTasksRequest(task_ids=[task_id]))
                try:
                    async for response in call:
                        for outcome in response.outcomes:
                            return Outcome(task_id, 0, outcome, connection.arrays)
                except grpc.aio.AioRpcError as rpc_error:
                    error = error_from_rpc(rpc_error)
                    if not is_temporary(error):
                        raise error from None
                finally:
                    call.cancel()
                await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise no_outcome(task_id, seconds) from None
