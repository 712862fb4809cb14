"""A fleet that trains and federates, with one hostile actor among its own."""

import asyncio
import json
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from parlmesh.rpc import open_channel
from parlmesh.security import Role, SecurityConfig
from parlmesh.security.tokens import write_token
from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import struct_to_proto

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[3]
START_SECONDS = 60.0
CALL_SECONDS = 15.0
TURN_SECONDS = 30.0
CALM_SECONDS = 5.0
SERVERS = ("scheduler", "learner", "federation")
FEDERATION = {
    "task": "drift",
    "rounds": 1_000_000,
    "quorum": 2,
    "round_seconds": 2.0,
    "selection": {"min_nodes": 2},
    "evaluation": {"interval_rounds": 0},
}


class Fleet:
    """A scheduler, a learner of a run, a learner of a federation and their actors, each with its own token."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self._tokens = folder / "certs"
        for name, role in (
            ("ada", Role.OPERATOR),
            ("plays", Role.ACTOR),
            ("fits-0", Role.ACTOR),
            ("fits-1", Role.ACTOR),
            ("mallory", Role.ACTOR),
        ):
            write_token(self._tokens, name, role, force=False)
        self.scheduler, self.learner, self.federation = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.processes: dict[str, Process] = {}

    def start(self) -> None:
        self._start("scheduler", "scheduler", self._server(self.scheduler), {"store.path": "scheduler.sqlite"})
        small = {"num_envs": 4, "trajectory_steps": 32, "step_budget": 10**9, "goal_return": "null", "hidden": "[8]"}
        training = {f"training.{name}": value for name, value in small.items()}
        towards = {"scheduler": self.scheduler, "security.token_file": self._tokens / "ada.token"}
        self._start("learner", "learner", self._server(self.learner), {**towards, "run_dir": "run", **training})
        mode = {"mode": "federation", "run_dir": "federations"}
        self._start("learner", "federation", self._server(self.federation), {**towards, **mode})
        self._actor("plays", self.learner, '["rollout","evaluate"]')
        for name in ("fits-0", "fits-1"):
            self._actor(name, self.federation, '["federated_fit","federated_evaluate"]')
        for name, process in self.processes.items():
            process.wait_for("serving" if name in SERVERS else "connected", START_SECONDS)

    def security(self, name: str) -> SecurityConfig:
        return SecurityConfig(token_file=self._tokens / f"{name}.token")

    def hostile(self, seconds: float, turns: int) -> Process:
        """The hostile actor, which knows the others' names."""
        arguments = {
            "scheduler": self.scheduler,
            "learners": [self.learner, self.federation],
            "token_file": str(self._tokens / "mallory.token"),
            "victims": ["plays", "fits-0"],
            "seconds": seconds,
            "turns": turns,
        }
        module = "tests.integration.security.hostile"
        return Process(module, json.dumps(arguments), cwd=ROOT, environment={"PYTHONPATH": str(ROOT)})

    def memory(self) -> dict[str, float]:
        """Memory of each process in MiB."""
        return {name: _resident(process.pid) for name, process in self.processes.items()}

    def disk(self) -> float:
        """Size of everything the fleet wrote in MiB."""
        found = 0
        for folder, _, files in os.walk(self.folder):
            for file in files:
                # Checkpoints may disappear while they are counted.
                with suppress(FileNotFoundError):
                    found += os.stat(os.path.join(folder, file)).st_size
        return found / 2**20

    def readable_by_others(self) -> list[Path]:
        """Lines that the services wrote."""
        found = []
        for folder, _, files in os.walk(self.folder):
            for file in [Path(folder, name) for name in files if self._tokens not in Path(folder, name).parents]:
                with suppress(FileNotFoundError):
                    found += [file] if file.stat().st_mode & 0o007 else []
        return found

    def _server(self, address: str) -> dict[str, Any]:
        return {
            "listen.port": address.rpartition(":")[2],
            "security.tokens": self._tokens / "tokens.yaml",
        }

    def _actor(self, name: str, learner: str, kinds: str) -> None:
        settings = {"node_id": name, "actor_id": name, "scheduler": self.scheduler, "learner": learner, "kinds": kinds}
        self._start("actor", name, settings, {"security.token_file": self._tokens / f"{name}.token"})

    def _start(self, module: str, name: str, *settings: dict[str, Any]) -> None:
        together = {"metrics.port": "null", **{key: value for part in settings for key, value in part.items()}}
        arguments = [part for key, value in together.items() for part in ("--set", f"{key}={value}")]
        environment = {"PYTHONPATH": str(ROOT)}
        process = Process(module, *arguments, cwd=self.folder, environment=environment)
        self.processes[name] = self._stack.enter_context(process)
        if module == "scheduler":
            process.wait_for("serving", START_SECONDS)


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        # As in most shells, so that file modes are the services' own.
        stack.callback(os.umask, os.umask(0o022))
        fleet = Fleet(tmp_path, stack)
        fleet.start()
        yield fleet


def loop_seconds(pid: int) -> float:
    """Processor time of the thread that runs the event loop, without the machine's other work."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class Samples:
    """How long honest calls took, and how long the server's loop worked meanwhile for all callers."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self.loop: list[float] = []

    def __str__(self) -> str:
        return f"{len(self.took)} calls, p99 {p99(self.took):.4f} s, of the loop {p99(self.loop):.4f} s"


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


class Watcher:
    """The fleet as an operator sees it."""

    def __init__(self, fleet: Fleet) -> None:
        ada = fleet.security("ada")
        self._pid = fleet.processes["scheduler"].pid
        self.channels = [open_channel(at, ada) for at in (fleet.scheduler, fleet.learner, fleet.federation)]
        self.scheduler: Any = SchedulerServiceStub(self.channels[0])
        self.trainings: Any = TrainingServiceStub(self.channels[1])
        self.federations: Any = FederationServiceStub(self.channels[2])

    async def training(self) -> training_pb.Training:
        answer = await self.trainings.GetTraining(training_pb.GetTrainingRequest(), timeout=CALL_SECONDS)
        found: training_pb.Training = answer.training
        return found

    async def federation(self) -> federation_pb.Federation:
        answer = await self.federations.GetFederation(federation_pb.GetFederationRequest(), timeout=CALL_SECONDS)
        found: federation_pb.Federation = answer.federation
        return found

    async def sample(self, seconds: float, into: "Samples") -> None:
        """Makes honest calls one after the other, with short pauses."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started, worked = time.perf_counter(), loop_seconds(self._pid)
            await self.scheduler.GetStatistics(GetStatisticsRequest(), timeout=CALL_SECONDS)
            into.took.append(time.perf_counter() - started)
            into.loop.append(loop_seconds(self._pid) - worked)
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


@pytest.mark.parametrize(
    ("seconds", "turns"), [(3.0, 1), pytest.param(60.0, 6, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_a_hostile_actor_neither_stops_nor_starves_nor_fills_an_honest_fleet(
    fleet: Fleet, seconds: float, turns: int
) -> None:
    """Measures with and without the hostile actor in turns, so that the machine's other work is in both.

    The figures so far are printed after every turn: an aborted test still has some.
    """
    watcher = Watcher(fleet)
    request = federation_pb.StartFederationRequest(federation_id="f", configuration=struct_to_proto(FEDERATION))
    await watcher.federations.StartFederation(request, timeout=CALL_SECONDS)

    async def both_move(version: int = 2, rounds: int = 2) -> bool:
        moved = (await watcher.training()).progress.policy_version >= version
        return moved and (await watcher.federation()).aggregated_rounds >= rounds

    await wait_until_async(both_move, START_SECONDS)
    memory, disk = fleet.memory(), fleet.disk()
    calm, raging = Samples(), Samples()
    await watcher.sample(seconds / turns, calm)

    with fleet.hostile(seconds / turns, turns) as hostile:
        for turn in range(turns):
            await asyncio.to_thread(hostile.wait_for, "rages", TURN_SECONDS, turn=turn)
            await watcher.sample(seconds / turns, raging)
            await asyncio.to_thread(hostile.wait_for, "rests", TURN_SECONDS, turn=turn)
            await watcher.sample(min(seconds / turns, CALM_SECONDS), calm)
            hostile.signal(signal.SIGUSR1)
            more = {name: now - memory[name] for name, now in fleet.memory().items()}
            print(f"turn {turn + 1} of {turns}: calm {calm}; raging {raging}")
            print(f"    MiB more: { ({name: round(value) for name, value in more.items()}) }")
            print(f"    MiB of disk more: {fleet.disk() - disk:.1f}", flush=True)
        raged = await asyncio.to_thread(hostile.wait_for, "raged", TURN_SECONDS)
    print(
        f"wall p99 {p99(raging.took) / p99(calm.took):.2f} times, of the loop {p99(raging.loop) / p99(calm.loop):.2f}"
    )
    print(raged["statuses"])
    assert len(raged["did"]) == 13, raged
    assert not [status for status in raged["statuses"] if status.endswith(("INTERNAL", "UNKNOWN"))]
    assert all(process.running for process in fleet.processes.values())
    assert max(more.values()) <= 200
    assert fleet.disk() - disk <= 50
    assert not fleet.readable_by_others()

    training, federation = await watcher.training(), await watcher.federation()
    assert training.state == training_pb.TRAINING_STATE_RUNNING, training.reason
    assert federation.state == federation_pb.FEDERATION_STATE_RUNNING, federation.reason
    further = (training.progress.policy_version + 2, federation.aggregated_rounds + 2)
    await wait_until_async(lambda: both_move(*further), START_SECONDS)
    stopped = await watcher.trainings.StopTraining(
        training_pb.StopTrainingRequest(run_id=training.run_id), timeout=CALL_SECONDS
    )
    assert stopped.training.state != training_pb.TRAINING_STATE_FAILED
    ended = await watcher.federations.StopFederation(
        federation_pb.StopFederationRequest(federation_id="f"), timeout=CALL_SECONDS
    )
    assert ended.federation.state != federation_pb.FEDERATION_STATE_FAILED
    defects = [line for process in fleet.processes.values() for line in process.events("internal_error")]
    assert not defects, defects[0]["exception"]
    assert turns == 1 or p99(raging.loop) <= 2 * p99(calm.loop)
    await watcher.close()
