"""The database of the schedulers fails over to a real standby, made by pg_basebackup."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from parlmesh.postgres.commit_guarantees import Promises, ask
from parlmesh.postgres.connection_settings import Target
from parlmesh.postgres.database import Database
from parlmesh.rpc import open_channel
from parlmesh.testing import wait_until_async
from parlmesh.testing.history import now
from parlmesh.testing.postgres import Cluster, binaries
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tools.faults.takeovers import SECONDS, Schedulers, under_load

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(binaries() is None, reason="there are no binaries of PostgreSQL"),
]


async def test_a_failover_to_a_synchronous_standby_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with Cluster(fsync=True) as primary, primary.standby() as standby:
        primary.wait_for_standby()
        async with Schedulers(primary, tmp_path / "fleet", standby=standby) as schedulers:
            promises = _promises(schedulers.url)
            assert promises.advice() == ""
            assert "1 of 1 standbys synchronous" in promises.said()
            async with under_load(schedulers) as takeovers:
                loader = takeovers.loader
                await wait_until_async(lambda: len(loader.acknowledged) > 50, SECONDS)
                start = now()
                await asyncio.to_thread(primary.kill)
                failed = loader.failed
                await wait_until_async(lambda: loader.failed > failed, SECONDS)
                await asyncio.to_thread(standby.promote)
                known = len(loader.acknowledged)
                await wait_until_async(lambda: len(loader.acknowledged) > known + 50, SECONDS)
                takeovers.note_change(start)
            assert takeovers.violations() == []


async def test_possible_losses_of_a_failover_to_an_asynchronous_standby_are_announced(tmp_path: Path) -> None:
    """What the standby lacks is lost; the schedulers continue with the rest, as a new memory."""
    with Cluster(fsync=True) as primary, primary.standby() as standby:
        async with (
            Schedulers(primary, tmp_path / "fleet", standby=standby) as schedulers,
            open_channel(schedulers.addresses) as channel,
        ):
            promises = _promises(schedulers.url)
            assert "1 asynchronous standbys" in promises.said()
            assert "loses the acknowledged tasks within its lag" in promises.advice()
            stub: Any = SchedulerServiceStub(channel)
            await wait_until_async(partial(_accepted, stub, "before"), SECONDS)
            position = primary.sql("postgres", "SELECT pg_current_wal_lsn()::text AS position")[0]["position"]
            replayed = f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
            await wait_until_async(lambda: standby.sql("postgres", replayed), SECONDS)
            # From here on it gets nothing more, silently.
            await asyncio.to_thread(standby.cut_off)
            await wait_until_async(partial(_accepted, stub, "lost"), SECONDS)
            await asyncio.to_thread(primary.kill)
            # An unwritable database counts as one that is away.
            with pytest.raises(OSError, match="read-write"):
                await asyncio.to_thread(_promises, standby.url("postgres"))
            await asyncio.to_thread(standby.promote)
            await wait_until_async(partial(_accepted, stub, "after"), SECONDS)
            assert [await _known(stub, name) for name in ("before", "lost", "after")] == [True, False, True]


def _promises(url: str) -> Promises:
    database = Database(Target(url))
    try:
        return ask(database)
    finally:
        database.close()


async def _accepted(stub: Any, *names: str) -> bool:
    tasks: Sequence[task_pb2.TaskSpec] = [task_pb2.TaskSpec(task_id=name, kind="noop") for name in names]
    try:
        await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=tasks), timeout=5.0)
    except grpc.aio.AioRpcError:
        return False
    return True


async def _known(stub: Any, task_id: str) -> bool:
    try:
        await stub.GetTask(pb.GetTaskRequest(task_id=task_id), timeout=5.0)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return False
    return True
