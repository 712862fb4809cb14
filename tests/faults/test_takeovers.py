"""Schedulers on one PostgreSQL: the leader is killed, stopped or cut off under load, and another takes over."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc.aio
import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.errors import Unavailable
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.testing import wait_until_async
from parlmesh.testing.history import now
from parlmesh.testing.postgres import Cluster
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from tools.faults.takeovers import FAULTS, SECONDS, Schedulers, under_load

# Short leases, so that tests of their end are short.
SHORT = {"store.lease_seconds": 0.8, "leases.heartbeat_seconds": 0.5}


async def run_turns(schedulers: Schedulers, turns: tuple[str, ...]) -> None:
    async with under_load(schedulers) as takeovers:
        for fault in turns:
            turn = await takeovers.turn(fault)
            assert turn.leader != turn.follower
    assert takeovers.findings == []
    assert takeovers.violations() == []
    assert len(takeovers.loader.acknowledged) > len(turns)


@pytest.mark.e2e
async def test_a_leader_that_is_killed_stopped_or_cut_off_is_replaced_and_nothing_is_lost_or_doubled(
    postgres: Cluster, tmp_path: Path
) -> None:
    async with Schedulers(postgres, tmp_path / "fleet", settings=SHORT) as schedulers:
        await _a_standby_refuses_with_the_leaders_address(schedulers)
        await run_turns(schedulers, FAULTS)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_three_schedulers_take_turns_over_thirty_faults(postgres: Cluster, tmp_path: Path) -> None:
    async with Schedulers(postgres, tmp_path / "fleet", count=3) as schedulers:
        await run_turns(schedulers, FAULTS * 10)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_killed_database_comes_back_with_everything_it_acknowledged(tmp_path: Path) -> None:
    with Cluster(fsync=True) as cluster:
        async with Schedulers(cluster, tmp_path / "fleet") as schedulers, under_load(schedulers) as takeovers:
            loader = takeovers.loader
            for _ in range(5):
                start = now()
                await asyncio.to_thread(cluster.kill)
                failed = loader.failed
                await wait_until_async(partial(_more, lambda: loader.failed, failed), SECONDS)
                await asyncio.to_thread(cluster.start)
                known = len(loader.acknowledged)
                await wait_until_async(partial(_more, lambda: len(loader.acknowledged), known), SECONDS)
                takeovers.note_change(start)
        assert takeovers.violations() == []


def _more(count: Callable[[], int], before: int) -> bool:
    return count() > before


async def _a_standby_refuses_with_the_leaders_address(schedulers: Schedulers) -> None:
    leader = schedulers.leader()
    assert leader is not None
    async with open_channel(f"127.0.0.1:{schedulers.ports[1 - leader]}") as channel:
        stub = SchedulerServiceStub(channel)

        async def names_the_leader() -> bool:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatistics(pb.GetStatisticsRequest(), timeout=5.0, wait_for_ready=True)
            error = error_from_rpc(caught.value)
            assert isinstance(error, Unavailable)
            assert error.reason == "NOT_LEADER"
            return error.metadata["leader"] == f"127.0.0.1:{schedulers.ports[leader]}"

        await wait_until_async(names_the_leader, 60.0)
    command = ["status", "--scheduler", f"127.0.0.1:{schedulers.ports[1 - leader]}", "--learner", "127.0.0.1:1"]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code != 0
    said = f"{result.output}{result.exception}"
    assert f"this scheduler stands by; the leader is at 127.0.0.1:{schedulers.ports[leader]}" in said
