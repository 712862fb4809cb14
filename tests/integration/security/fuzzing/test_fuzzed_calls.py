"""Every method of a real scheduler and two real learners, called with random messages."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from parlmesh.rpc import open_channel
from parlmesh.testing import Process
from parlmesh.v1 import (
    blob_service_pb2,
    experience_service_pb2,
    federation_service_pb2,
    fleet_service_pb2,
    metrics_service_pb2,
    model_service_pb2,
    policy_service_pb2,
    scheduler_service_pb2,
    training_service_pb2,
)
from tests.integration.security.fuzzing.fuzzing_time import LENGTHS, first_seed, seconds_of
from tests.integration.security.fuzzing.messages import Fuzzer

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[4]
START_SECONDS = 60.0
CALL_SECONDS = 0.5
CALLERS = 3
LONGEST_STALL_SECONDS = 0.25
"""Of a loop's own processor time, between a question and its answer."""
Servers = dict[str, tuple[Process, str]]
FILES = {
    "scheduler": (scheduler_service_pb2, fleet_service_pb2, blob_service_pb2),
    "learner": (
        experience_service_pb2,
        metrics_service_pb2,
        model_service_pb2,
        policy_service_pb2,
        training_service_pb2,
    ),
    "federation": (federation_service_pb2,),
}


def methods(server: str) -> list[MethodDescriptor]:
    files: Any = FILES[server]
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return [method for service in services for method in service.methods]


def test_every_service_of_the_contract_is_called() -> None:
    protos = {file.stem for file in (ROOT / "protos/parlmesh/v1").glob("*_service.proto")}
    assert protos == {Path(file.DESCRIPTOR.name).stem for files in FILES.values() for file in files}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Address and process by name."""
    small = [f"training.{one}" for one in ("num_envs=2", "hidden=[8]", "goal_return=null", "step_budget=1000000000")]
    with ExitStack() as stack:

        def start(module: str, *settings: str) -> tuple[Process, str]:
            arguments = [part for one in ("listen.port=0", "metrics.port=null", *settings) for part in ("--set", one)]
            process = Process(module, *arguments, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)})
            stack.enter_context(process)
            return process, process.wait_for("serving", START_SECONDS)["address"]

        scheduler = start("scheduler", "store.path=scheduler.sqlite")
        towards = f"scheduler={scheduler[1]}"
        yield {
            "scheduler": scheduler,
            "learner": start("learner", "mode=serial", "run_dir=run", *small),
            "federation": start("learner", "mode=federation", "run_dir=federations", towards),
        }


async def call(channel: Any, method: MethodDescriptor, fuzzer: Fuzzer) -> grpc.aio.AioRpcError | None:
    path = f"/{method.containing_service.full_name}/{method.name}"
    count = fuzzer.random.randrange(1, 5) if method.client_streaming else 1
    messages = [fuzzer.encoded(method.input_type) for _ in range(count)]
    try:
        if method.client_streaming:
            stream = channel.stream_stream(path)(timeout=CALL_SECONDS)
            for message in messages:
                await stream.write(message)
            await stream.done_writing()
        else:
            stream = channel.unary_stream(path)(messages[0], timeout=CALL_SECONDS)
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    except (asyncio.InvalidStateError, grpc.aio.InternalError):
        # The stream ended under a write.
        return None
    return None


class Fuzzing:
    """Calls until the time is up, and their results."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._end = time.monotonic() + seconds
        self._seed = seed
        self.statuses: dict[str, Counter[str]] = defaultdict(Counter)
        self.wrong: list[str] = []
        self.slowest = 0.0
        self.longest_work: dict[str, float] = {}

    async def run(self, server: str, address: str, pid: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CALLERS):
                group.create_task(self._calls(server, address, number))
            group.create_task(self._looks(server, address, pid))

    async def _calls(self, server: str, address: str, number: int) -> None:
        named = methods(server)
        async with open_channel(address) as channel:
            for turn in range(1 << 30):
                if time.monotonic() > self._end and turn >= len(named):
                    return
                seed = self._seed + CALLERS * turn + number
                method = named[turn % len(named)]
                error = await call(channel, method, Fuzzer(seed))
                lost = error is not None and error.details() == "Internal error from Core"
                code = "OK" if error is None or lost else error.code().name
                self.statuses[method.full_name][code] += 1
                if error is not None and code in ("INTERNAL", "UNKNOWN", "UNAVAILABLE"):
                    self.wrong.append(f"{method.full_name} seed {seed}: {code} {error.details()}")

    async def _looks(self, server: str, address: str, pid: int) -> None:
        """How long the server's loop works while somebody waits; the wait itself depends on the machine too."""
        async with open_channel(address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < self._end:
                started, worked = time.perf_counter(), loop_seconds(pid)
                await stub.Check(health_pb2.HealthCheckRequest(), timeout=60.0)
                self.slowest = max(self.slowest, time.perf_counter() - started)
                self.longest_work[server] = max(self.longest_work.get(server, 0.0), loop_seconds(pid) - worked)
                await asyncio.sleep(0.02)


def loop_seconds(pid: int) -> float:
    """Processor time of the thread that runs the event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


@pytest.mark.parametrize("length", LENGTHS)
async def test_no_message_causes_a_defect_a_crash_or_a_leak(servers: Servers, length: str) -> None:
    seed = first_seed(length)
    before = {name: memory(process.pid) for name, (process, _) in servers.items()}
    fuzzing = Fuzzing(seconds_of("calls", length), seed)
    async with asyncio.TaskGroup() as group:
        for name, (process, address) in servers.items():
            group.create_task(fuzzing.run(name, address, process.pid))
    for name, (process, _) in servers.items():
        assert process.running, f"{name} ended, seed {seed}: {process.lines[-5:]}"
        print(f"{name}: {memory(process.pid) - before[name]:.0f} MiB more")
        assert memory(process.pid) - before[name] <= 400, f"seed {seed}"
    calls = sum(sum(counts.values()) for counts in fuzzing.statuses.values())
    print(
        f"seed {seed}: {calls} calls, slowest look {fuzzing.slowest:.3f} s, loop {fuzzing.longest_work}, "
        f"{dict(fuzzing.statuses)}"
    )
    assert set(fuzzing.statuses) == {method.full_name for name in FILES for method in methods(name)}
    defects = [line for process, _ in servers.values() for line in process.events("internal_error")]
    assert not defects, f"seed {seed}: {defects[0]['method']} {defects[0]['exception']}"
    assert not fuzzing.wrong, fuzzing.wrong[:5]
    assert max(fuzzing.longest_work.values()) <= LONGEST_STALL_SECONDS, f"seed {seed}: {fuzzing.longest_work}"
