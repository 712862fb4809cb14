"""Real streams of many actors to one scheduler process under steady load: heartbeats, round trips and their cost.

The actors are one process of raw streams, as many as asked for, several to a connection. It speaks an actor's protocol
and answers tasks at once, so that the scheduler is what is measured.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import parlmesh  # noqa: F401 - first, because it chooses gRPC's engine

# isort: split
import grpc.aio
import psutil
import uvloop

from parlmesh.client import ActorState, PARLController, TaskRequest
from parlmesh.rpc.grpc_options import channel_options
from parlmesh.testing import Process, free_port
from parlmesh.v1 import fleet_service_pb2 as pb

from ...ground.samples import percentile

METHOD = "/parlmesh.v1.FleetService/Connect"
HEARTBEAT_SECONDS = 1.0
LONGEST_SECONDS = 120.0
MESSAGE_BYTES = 1 << 24


class Actor:
    """One stream: hello, a credit, a result for each task, a heartbeat each second."""

    beats = 0

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        self._channel = channel
        self._call: Any = None
        self._name = name
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()

    async def open(self) -> None:
        hello = pb.Hello(node_id=self._name, actor_id=self._name, incarnation=1, slots=1, kinds=["noop"])
        self._call = self._channel.stream_stream(METHOD)()
        try:
            await self._call.write(pb.ConnectRequest(hello=hello).SerializeToString())
            welcome = pb.ConnectResponse.FromString(await self._call.read())
        except (asyncio.InvalidStateError, TypeError):
            raise SystemExit(f"{self._name}: {await self._call.code()}, {await self._call.details()}") from None
        assert welcome.HasField("welcome"), welcome
        await self._call.write(pb.ConnectRequest(credits=1).SerializeToString())

    async def live(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write())
            group.create_task(self._beat())
            while True:
                found = pb.ConnectResponse.FromString(await self._call.read())
                if found.assignments:
                    answer = pb.ConnectRequest(credits=len(found.assignments))
                    for assignment in found.assignments:
                        answer.results.add(lease=assignment.lease).result.SetInParent()
                    self._outbox.put_nowait(answer.SerializeToString())

    async def _write(self) -> None:
        while True:
            await self._call.write(await self._outbox.get())

    async def _beat(self) -> None:
        # Not all at the same moment.
        await asyncio.sleep(hash(self._name) % 1000 / 1000 * HEARTBEAT_SECONDS)
        data = pb.ConnectRequest(heartbeat=pb.Heartbeat()).SerializeToString()
        while True:
            self._outbox.put_nowait(data)
            Actor.beats += 1
            await asyncio.sleep(HEARTBEAT_SECONDS)


async def act(port: int, streams: int, each: int) -> None:
    """The actors' process: says "ready" when all are welcome."""
    options = channel_options(MESSAGE_BYTES, loopback=True)
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(-(-streams // each))]
    actors = [Actor(channels[number // each], f"actor-{number}") for number in range(streams)]
    for start in range(0, streams, each):
        await asyncio.gather(*(actor.open() for actor in actors[start : start + each]))
    async with asyncio.TaskGroup() as group:
        for actor in actors:
            group.create_task(actor.live())
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: print(Actor.beats, flush=True))
        print("ready", flush=True)


async def load(controller: PARLController, tasks_per_second: float, batch: int) -> None:
    """A stream of tasks besides those that are measured; large batches make it bursty."""
    due = time.perf_counter()
    while True:
        await controller.execute_parallel([TaskRequest("noop")] * batch, timeout=LONGEST_SECONDS)
        due = max(due + batch / tasks_per_second, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())


async def watch(controller: PARLController, found: dict[str, float]) -> None:
    while True:
        actors = await controller.list_actors()
        now = datetime.now(UTC)
        ages = [(now - actor.last_heartbeat_time).total_seconds() for actor in actors]
        found["oldest_heartbeat_seconds"] = max(found["oldest_heartbeat_seconds"], *ages)
        found["fewest_ready"] = min(found["fewest_ready"], sum(actor.state is ActorState.READY for actor in actors))
        await asyncio.sleep(2.0)


async def press(port: int, streams: int, rate: float, batch: int) -> None:
    """Runs the load and watches the actors, in another process than the measurement; prints its counts at the end."""
    worst = {"oldest_heartbeat_seconds": 0.0, "fewest_ready": float(streams)}
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with await PARLController.connect(f"127.0.0.1:{port}") as controller:
        work = [asyncio.create_task(load(controller, rate, batch)), asyncio.create_task(watch(controller, worst))]
        print("ready", flush=True)
        await asyncio.wait({*work, asyncio.create_task(ending.wait())}, return_when=asyncio.FIRST_COMPLETED)
        for each in work:
            each.cancel()
    print(json.dumps(worst), flush=True)


async def measure(port: int, scheduler: int, arguments: argparse.Namespace, crowd: int) -> dict[str, Any]:
    milliseconds: list[float] = []
    async with await PARLController.connect(f"127.0.0.1:{port}") as prober:
        process, driver = psutil.Process(scheduler), psutil.Process(crowd)
        began, used, used_by_crowd = time.perf_counter(), sum(process.cpu_times()[:2]), sum(driver.cpu_times()[:2])
        while time.perf_counter() - began < arguments.seconds:
            started = time.perf_counter()
            (outcome,) = await prober.execute_parallel([TaskRequest("noop")], timeout=LONGEST_SECONDS)
            outcome.unwrap()
            milliseconds.append((time.perf_counter() - started) * 1e3)
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - began
        statistics = await prober.get_statistics()
    return {
        "roundtrip_p50_ms": percentile(milliseconds, 0.5),
        "roundtrip_p99_ms": percentile(milliseconds, 0.99),
        "trips": len(milliseconds),
        "seconds": seconds,
        "tasks": statistics.completed_tasks,
        "scheduler_cores": (sum(process.cpu_times()[:2]) - used) / seconds,
        "crowd_cores": (sum(driver.cpu_times()[:2]) - used_by_crowd) / seconds,
        "scheduler_megabytes": process.memory_info().rss / 1e6,
        "queued_at_end": statistics.queued_tasks,
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        settings = [f"listen.port={port}", "metrics.port=null", f"store.kind={arguments.store}"]
        settings.append(f"store.path={Path(folder) / 'scheduler.sqlite'}")
        with Process("scheduler", *(part for each in settings for part in ("--set", each))) as scheduler:
            scheduler.wait_for("serving", LONGEST_SECONDS)
            alone = psutil.Process(scheduler.pid).memory_info().rss
            command = [sys.executable, "-m", "tools.bench.ours.scheduler.streams", "--act", str(port)]
            command += ["--streams", str(arguments.streams), "--each", str(arguments.each)]
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as crowd:
                try:
                    assert crowd.stdout is not None
                    if crowd.stdout.readline().strip() != "ready":
                        raise SystemExit(f"{arguments.streams} streams could not all be opened")
                    connected = time.perf_counter() - began
                    beats = -_beats(crowd)
                    with _pressing(port, arguments) as presser:
                        found = uvloop.run(measure(port, scheduler.pid, arguments, crowd.pid))
                        found |= _ended(presser)
                    beats += _beats(crowd)
                finally:
                    crowd.kill()
    kilobytes = (found["scheduler_megabytes"] * 1e6 - alone) / arguments.streams / 1e3
    found |= {"heartbeats": beats, "kilobytes_per_stream": kilobytes}
    return {"streams": arguments.streams, "connect_seconds": connected, **found}


@contextlib.contextmanager
def _pressing(port: int, arguments: argparse.Namespace) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "tools.bench.ours.scheduler.streams", "--press", str(port)]
    command += ["--streams", str(arguments.streams), "--rate", str(arguments.rate), "--batch", str(arguments.batch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as presser:
        try:
            assert presser.stdout is not None
            if presser.stdout.readline().strip() != "ready":
                raise SystemExit("the load could not start")
            yield presser
        finally:
            presser.kill()


def _ended(presser: "subprocess.Popen[str]") -> dict[str, float]:
    assert presser.stdout is not None
    presser.send_signal(signal.SIGTERM)
    found: dict[str, float] = json.loads(presser.stdout.readline())
    return found


def _beats(crowd: "subprocess.Popen[str]") -> int:
    """Heartbeats that the actors have sent so far."""
    assert crowd.stdout is not None
    crowd.send_signal(signal.SIGUSR1)
    return int(crowd.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--each", type=int, default=50, help="streams of one connection")
    parser.add_argument("--rate", type=float, default=500.0, help="tasks a second besides those that are measured")
    parser.add_argument("--batch", type=int, default=10, help="how many of these are submitted at once")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--store", choices=("memory", "sqlite"), default="memory")
    parser.add_argument("--act", type=int, metavar="PORT", help="be the actors of the scheduler there")
    parser.add_argument("--press", type=int, metavar="PORT", help="be the load of the scheduler there")
    arguments = parser.parse_args()
    if arguments.press:
        uvloop.run(press(arguments.press, arguments.streams, arguments.rate, arguments.batch))
        return
    if arguments.act:
        uvloop.run(act(arguments.act, arguments.streams, arguments.each))
        return
    print(json.dumps(run(arguments)))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
