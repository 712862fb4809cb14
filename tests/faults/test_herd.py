"""Hundreds of actors return at once, and clients ping too often."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SECONDS = 60.0


def process(module: str, **settings: object) -> Process:
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return Process(module, "--set", "metrics.port=null", *arguments, cwd=ROOT)


def scheduler(port: int, folder: Path) -> Process:
    started = process("scheduler", **{"listen.port": port, "store.path": folder / "s.sqlite"})
    started.wait_for("serving", SECONDS)
    return started


async def test_five_hundred_actors_come_back_at_once_and_bring_their_work(tmp_path: Path) -> None:
    port = free_port()
    first = scheduler(port, tmp_path)
    settings = {"scheduler": f"127.0.0.1:{port}", "actors": 250, "kinds": "[sleep, noop]"}
    hosts = [process("actor", **settings, actor_id=name, node_id=name) for name in ("a", "b")]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = SchedulerServiceStub(channel)

            async def ready() -> int:
                try:
                    answer = await stub.GetStatistics(pb.GetStatisticsRequest(), timeout=10.0)
                except grpc.aio.AioRpcError:
                    return 0
                return int(answer.ready_workers)

            async def all_ready() -> bool:
                return await ready() == 500

            await wait_until_async(all_ready, SECONDS)
            specs = [task_pb2.TaskSpec(task_id=f"t{number}", kind="sleep") for number in range(500)]
            for spec in specs:
                spec.payload.parameters.update({"seconds": 4.0})
            await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=specs), timeout=SECONDS)
            await asyncio.sleep(1.0)
            await asyncio.to_thread(first.kill)
            with first:
                first = await asyncio.to_thread(scheduler, port, tmp_path)
            assert await ready() < 500, "they are away"
            await wait_until_async(all_ready, SECONDS)
            outcomes: list[task_pb2.Outcome] = []
            watch = stub.WatchTasks(pb.WatchTasksRequest(task_ids=[spec.task_id for spec in specs]), timeout=SECONDS)
            async for answer in watch:
                outcomes += answer.outcomes
            assert {outcome.state for outcome in outcomes} == {task_pb2.TASK_STATE_SUCCEEDED}
            assert len(outcomes) == 500
            statistics = await stub.GetStatistics(pb.GetStatisticsRequest(), timeout=SECONDS)
            assert statistics.retried_tasks == 0
    finally:
        for each in (*hosts, first):
            with each:
                pass


async def test_a_client_that_pings_too_often_is_sent_away_and_loses_nothing(tmp_path: Path) -> None:
    port = free_port()
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ]
    with scheduler(port, tmp_path), process("actor", scheduler=f"127.0.0.1:{port}", kinds="[sleep, noop]") as actor:
        actor.wait_for("connected", SECONDS)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = SchedulerServiceStub(channel)
            spec = task_pb2.TaskSpec(task_id="long", kind="sleep")
            spec.payload.parameters.update({"seconds": 7.0})
            await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[spec]), timeout=SECONDS)
            goodbyes: list[str] = []
            seen: list[task_pb2.Outcome] = []
            while not seen:
                # Only pings are sent on the stream.
                try:
                    async for answer in stub.WatchTasks(pb.WatchTasksRequest(task_ids=["long"]), timeout=SECONDS):
                        seen += answer.outcomes
                except grpc.aio.AioRpcError as error:
                    goodbyes.append(error.details() or "")
            assert any("pings" in goodbye for goodbye in goodbyes), goodbyes
            assert [(outcome.state, outcome.attempts) for outcome in seen] == [(task_pb2.TASK_STATE_SUCCEEDED, 1)]
