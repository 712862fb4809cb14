"""Follows a task or a trajectory through real services; the walks are in docs/architecture.md.

python tools/walk.py task says which functions of the page were not called, and through which files the task itself
passed, stay by stay: its hops, as the page counts them python tools/walk.py trajectory the same of a trajectory, from
the request for it to the policy that it made python tools/walk.py trajectory --all also prints every function that was
called, in the order of first calls

A file counts once in each stay when one of its functions is given what is followed, or answers with it; the one that
calls that function had it before, and counts too. Codecs and checks are in, constructors of records left out.
`call_trace.py` has what a task is known by, `trajectory_trace.py` what a trajectory is.
"""

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# As the binaries do; threads of numpy that wait would keep all others from their cores.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from parlmesh.grpc_engine import choose_engine  # noqa: E402

choose_engine()

import grpc.aio  # noqa: E402

from actor.config import ActorConfig  # noqa: E402
from actor.serve import serve as serve_actor  # noqa: E402
from learner.config import LearnerConfig  # noqa: E402
from learner.serve import serve as serve_learner  # noqa: E402
from parlmesh.client import PARLController, TaskRequest  # noqa: E402
from parlmesh.rpc import open_channel  # noqa: E402
from parlmesh.testing import free_port  # noqa: E402
from parlmesh.v1.training_service_pb2 import GetTrainingRequest  # noqa: E402
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub  # noqa: E402
from scheduler.config import SchedulerConfig  # noqa: E402
from scheduler.serve import serve as serve_scheduler  # noqa: E402
from tools.call_trace import TaskTrail, Trace  # noqa: E402
from tools.trajectory_trace import TrajectoryTrail  # noqa: E402

_STOP_SECONDS = 10.0
_START_SECONDS = 60.0
_POLL_SECONDS = 0.1
# Trajectories before the one that is followed: they opened everything, and a reader knows all eight layouts of their
# columns, of which some are rare.
_WARM_UP = 500

_MARK = "the task that is followed"


async def task(trace: Trace) -> list[str]:
    """One `echo` on a scheduler with SQLite and one actor, after another that opened everything."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        store = {"kind": "sqlite", "path": f"{folder}/scheduler.sqlite"}
        services = _Services(_scheduler(port, store), _actor(port))
        async with services, PARLController(f"127.0.0.1:{port}") as controller:
            (first,) = await controller.execute_parallel([TaskRequest("echo", {"n": 1})], timeout=_START_SECONDS)
            prefix, number = first.task_id.rsplit("-", 1)
            trace.trail = TaskTrail((_MARK, f"{prefix}-{int(number) + 1}"))
            with trace.on():
                await controller.execute_parallel([TaskRequest("echo", {"n": _MARK})], timeout=_START_SECONDS)
            return trace.calls


async def trajectory(trace: Trace) -> list[str]:
    """One trajectory after another of a training: at lag 0 with batches of one, there is one at a time."""
    port, learner = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = LearnerConfig.model_validate(
            {
                "listen": {"port": learner},
                "metrics": {"port": None},
                "scheduler": f"127.0.0.1:{port}",
                "run_dir": f"{folder}/run",
                "runs_dir": folder,
                "training": {
                    "environment": {"id": "CartPole-v1"},
                    "step_budget": 10_000_000,
                    "batch_trajectories": 1,
                    "max_policy_lag": 0,
                    "evaluation_interval_steps": 10_000_000,
                },
            }
        )
        stop = asyncio.Event()
        training = serve_learner(settings, stop)
        async with _Services(_scheduler(port, {"kind": "memory"}), (training, stop), _actor(port, learner)):
            await _received(learner, _WARM_UP)
            ended = asyncio.Event()
            trace.trail = TrajectoryTrail(ended.set)
            async with asyncio.timeout(_START_SECONDS):
                with trace.on():
                    await ended.wait()
            return trace.calls


async def _received(learner: int, wanted: int) -> None:
    """Waits until the learner has received so many trajectories."""
    async with open_channel(f"127.0.0.1:{learner}") as channel, asyncio.timeout(_START_SECONDS):
        stub = TrainingServiceStub(channel)
        received = 0
        while received < wanted:
            await asyncio.sleep(_POLL_SECONDS)
            with contextlib.suppress(grpc.aio.AioRpcError):  # it is not there yet
                answer = await stub.GetTraining(GetTrainingRequest(run_id="run"), timeout=_START_SECONDS)
                received = answer.training.progress.received_trajectories


def _scheduler(port: int, store: dict[str, Any]) -> tuple[Any, asyncio.Event]:
    stop = asyncio.Event()
    values = {"listen": {"port": port}, "metrics": {"port": None}, "store": store}
    return serve_scheduler(SchedulerConfig.model_validate(values), stop), stop


def _actor(port: int, learner: int = 0) -> tuple[Any, asyncio.Event]:
    stop = asyncio.Event()
    values = {"scheduler": f"127.0.0.1:{port}", "node_id": "node", "actor_id": "actor", "metrics": {"port": None}}
    given = values | ({"learner": f"127.0.0.1:{learner}"} if learner else {})
    return serve_actor(ActorConfig.model_validate(given), stop), stop


class _Services:
    def __init__(self, *services: tuple[Any, asyncio.Event]) -> None:
        self._services = services
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> None:
        self._tasks = {asyncio.ensure_future(work) for work, _ in self._services}

    async def __aexit__(self, *error: object) -> None:
        for _, stop in reversed(self._services):
            stop.set()
        await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)


def named(heading: str) -> list[str]:
    """The functions of a walk, as the page has them."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    walk = page.split(heading + "\n")[1].split("\n## ")[0]
    return [f"{file} {name}" for file, name in re.findall(r"^ *(?:\d+|·) (\S+\.py) +(\S+)$", walk, re.MULTILINE)]


WALKS = {"task": ("## The life of a task", task), "trajectory": ("## The life of a trajectory", trajectory)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walk", choices=WALKS)
    parser.add_argument("--all", action="store_true", help="print every function that was called")
    given = parser.parse_args()
    heading, walk = WALKS[given.walk]
    trace = Trace()
    calls = asyncio.run(walk(trace))
    called = {call.split(".<locals>")[0] for call in calls}
    files = {call.split()[0] for call in calls}
    absent = [each for each in named(heading) if each not in called]
    if given.all:
        print("\n".join(dict.fromkeys(calls)))
    for stay, entered in trace.stays.items():
        print(f"{stay}: {len(entered)} hops")
        print("".join(f"   {file:52} {function}\n" for file, function in entered.items()), end="")
    if trace.stays:
        print(f"{sum(map(len, trace.stays.values()))} hops by stays")
    print(f"{given.walk}: {len(named(heading))} named, {len(files)} files visited, not called: {absent or 'none'}")


if __name__ == "__main__":
    main()
