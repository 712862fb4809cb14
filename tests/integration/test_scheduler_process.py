"""The scheduler as a process: killed under load, started twice, started on a damaged file, stopped."""

import asyncio
import random
import socket
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from parlmesh.limits import TASK_IDS
from parlmesh.rpc import open_channel
from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.v1 import fleet_service_pb2 as fleet_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1.fleet_service_pb2_grpc import FleetServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub

pytestmark = pytest.mark.e2e

SECONDS = 60.0
ROOT = Path(__file__).parents[2]


def noop(task_id: str) -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(task_id=task_id, kind="noop")


def result_of(assignment: fleet_pb.Assignment) -> fleet_pb.TaskResult:
    result = fleet_pb.TaskResult(lease=assignment.lease, ran=Duration(nanos=1_000_000))
    result.result.CopyFrom(assignment.payload)
    return result


class Fleet:
    """A scheduler process on a file, two actors that answer everything, and a client's records."""

    def __init__(self, path: Path) -> None:
        self.port = free_port()
        self.path = path
        self.accepted: set[str] = set()
        self.outcomes: dict[str, int] = {}
        self.ran: dict[str, int] = {}
        self.stopping = False

    def start(self, **environment: str) -> Process:
        settings = (
            f"listen.port={self.port}",
            "metrics.port=null",
            "store.kind=sqlite",
            f"store.path={self.path}",
            "store.compact_records=5000",
        )
        arguments = [part for setting in settings for part in ("--set", setting)]
        return Process("scheduler", *arguments, cwd=ROOT, environment=environment)

    async def actor(self, name: str) -> None:
        """Reconnects after every broken stream with its leases and unacknowledged results."""
        results: dict[int, fleet_pb.TaskResult] = {}
        while not self.stopping:
            async with open_channel(f"127.0.0.1:{self.port}") as channel:
                stub: Any = FleetServiceStub(channel)
                call = stub.Connect()
                try:
                    await self._session(call, name, results)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await asyncio.sleep(0.05)
                finally:
                    call.cancel()

    async def _session(self, call: Any, name: str, results: dict[int, fleet_pb.TaskResult]) -> None:
        hello = fleet_pb.Hello(actor_id=name, node_id=name, incarnation=1, slots=250, kinds=["noop"])
        hello.leases.extend(result.lease for result in results.values())
        await call.write(fleet_pb.ConnectRequest(hello=hello, credits=250, results=results.values()))
        while isinstance(response := await call.read(), fleet_pb.ConnectResponse):
            if response.HasField("welcome"):
                standing = {lease.lease_id for lease in response.welcome.leases}
                for lease_id in [lease_id for lease_id in results if lease_id not in standing]:
                    del results[lease_id]
            for lease in (*response.acknowledged, *response.revoked):
                results.pop(lease.lease_id, None)
            fresh = [result_of(assignment) for assignment in response.assignments]
            for result in fresh:
                results[result.lease.lease_id] = result
                self.ran[result.lease.task_id] = self.ran.get(result.lease.task_id, 0) + 1
            if fresh:
                await call.write(fleet_pb.ConnectRequest(results=fresh, credits=len(fresh)))

    async def submitter(self, tasks: int, batch: int) -> None:
        """Submits with its own ids and repeats every request until it is answered."""
        for first in range(0, tasks, batch):
            request = pb.SubmitTasksRequest(tasks=[noop(f"t{number}") for number in range(first, first + batch)])
            while True:
                try:
                    async with open_channel(f"127.0.0.1:{self.port}") as channel:
                        stub: Any = SchedulerServiceStub(channel)
                        answer = await stub.SubmitTasks(request, timeout=SECONDS, wait_for_ready=True)
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.02)
            self.accepted.update(answer.task_ids)

    async def finished(self) -> bool:
        async with open_channel(f"127.0.0.1:{self.port}") as channel:
            stub: Any = SchedulerServiceStub(channel)
            try:
                found = await stub.GetStatistics(pb.GetStatisticsRequest(), timeout=SECONDS)
            except grpc.aio.AioRpcError:
                return False
            return bool(found.queued_tasks + found.running_tasks + found.waiting_tasks == 0)

    async def check(self) -> None:
        """Every accepted task has exactly one outcome, and it is a success."""
        async with open_channel(f"127.0.0.1:{self.port}") as channel:
            stub: Any = SchedulerServiceStub(channel)
            accepted, most = sorted(self.accepted), int(TASK_IDS.most)
            seen: list[str] = []
            for first in range(0, len(accepted), most):
                request = pb.WatchTasksRequest(task_ids=accepted[first : first + most])
                async for response in stub.WatchTasks(request, timeout=SECONDS):
                    for outcome in response.outcomes:
                        assert outcome.state == task_pb2.TASK_STATE_SUCCEEDED
                        seen.append(outcome.task_id)
            assert len(seen) == len(set(seen)) == len(self.accepted)


async def kill_under_load(path: Path, *, tasks: int, kills: int, seed: int) -> None:
    fleet, rng = Fleet(path), random.Random(seed)
    process = fleet.start()
    try:
        process.wait_for("serving")
        actors = [asyncio.create_task(fleet.actor(name)) for name in ("a", "b")]
        submitter = asyncio.create_task(fleet.submitter(tasks, batch=500))
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.05, 0.6))
            process.kill()
            with process:
                process = fleet.start()
            await asyncio.to_thread(process.wait_for, "serving")
        await asyncio.wait_for(submitter, 60)
        await wait_until_async(fleet.finished, 60)
        await fleet.check()
        assert len(fleet.accepted) == tasks
        fleet.stopping = True
        process.terminate()
        await asyncio.to_thread(process.assert_exits, 0)
        for actor in actors:
            actor.cancel()
        await asyncio.gather(*actors, return_exceptions=True)
    finally:
        with process:
            fleet.stopping = True


async def test_nothing_accepted_is_lost_or_doubled_when_the_scheduler_is_killed_under_load(tmp_path: Path) -> None:
    await kill_under_load(tmp_path / "s.sqlite", tasks=10_000, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
async def test_nothing_accepted_is_lost_or_doubled_in_twenty_kills(tmp_path: Path, seed: int) -> None:
    await kill_under_load(tmp_path / "s.sqlite", tasks=100_000, kills=20, seed=seed)


def test_a_second_scheduler_on_the_same_file_refuses_to_start(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "s.sqlite")
    with fleet.start() as first:
        first.wait_for("serving")
        fleet.port = free_port()
        for _ in range(2):
            with fleet.start() as second:
                assert second.wait() == 1
                assert any("in use by another scheduler" in line for line in second.lines)
            # Again without the file that only names the owner.
            fleet.path.with_name(fleet.path.name + ".lock").unlink()


def test_a_damaged_journal_stops_the_start_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    path.write_bytes(b"garbage" * 1000)
    with Fleet(path).start() as process:
        assert process.wait() == 1
        assert any(line.startswith("error: ") and "damaged" in line for line in process.lines)


def test_a_store_that_is_gone_stops_the_start_with_one_line(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "s.sqlite")
    with fleet.start() as process:
        process.wait_for("serving")
        process.terminate()
        process.assert_exits(0)
    fleet.path.unlink()
    with fleet.start() as process:
        assert process.wait() == 1
        assert any(line.startswith("error: ") and "is gone" in line for line in process.lines)


async def test_an_error_before_a_record_ends_the_process_and_the_next_one_goes_on(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "s.sqlite")
    with fleet.start(PARLMESH_FAILPOINTS="before_encode=memory@2") as process:
        process.wait_for("serving")
        async with open_channel(f"127.0.0.1:{fleet.port}") as channel:
            stub: Any = SchedulerServiceStub(channel)
            await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[noop("told")]), timeout=SECONDS)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.SubmitTasks(pb.SubmitTasksRequest(tasks=[noop("never told")]), timeout=SECONDS)
        assert await asyncio.to_thread(process.wait) == 1
        assert process.events("decision_failed")
        assert any(line.startswith("error: MemoryError") for line in process.lines)
    with fleet.start() as process:
        process.wait_for("serving")
        assert process.events("recovered")[0]["tasks"] == 1


def test_sigterm_stops_an_idle_scheduler_cleanly(tmp_path: Path) -> None:
    with Fleet(tmp_path / "s.sqlite").start() as process:
        process.wait_for("serving")
        process.terminate()
        process.assert_exits(0)
        assert process.events("stopped")


@pytest.mark.parametrize("path", ["{folder}", "/dev/full", "/proc/nowhere/scheduler.sqlite", "{folder}/file/s.sqlite"])
def test_a_path_that_cannot_be_a_store_ends_the_start_with_one_line(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = ("metrics.port=null", "listen.port=0", f"store.path={path.format(folder=tmp_path)}")
    with Process("scheduler", *(part for each in settings for part in ("--set", each)), cwd=ROOT) as process:
        process.assert_exits(1)
        assert process.lines[-1].startswith("error: ")
        assert not process.events("service_failed")


def test_settings_that_cannot_serve_end_with_their_sentence_and_exit_code_also_with_a_store(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = f"store.path={tmp_path / 's.sqlite'}"
        for settings, code in (
            (("listen.host=0.0.0.0", "listen.port=0"), 4),
            ((f"listen.port={taken.getsockname()[1]}",), 3),
            (("listen.port=0", "security.certificate=nofile", "security.key=x", "security.ca=y"), 4),
        ):
            given = (store, "metrics.port=null", *settings)
            with Process("scheduler", *(part for each in given for part in ("--set", each)), cwd=ROOT) as process:
                process.assert_exits(code)
                assert process.lines[-1].startswith("error: ")
                assert not process.events("service_failed")
