"""Follows a task, or trajectories for a while, through real services; the walks are in docs/architecture.md.

python tools/walk.py task               says which functions of the page were not called, and how many files it visited
python tools/walk.py trajectory --all   also prints every function that was called, in the order of first calls
"""

import argparse
import asyncio
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from parlmesh.grpc_engine import choose_engine  # noqa: E402

choose_engine()

from actor.config import ActorConfig  # noqa: E402
from actor.serve import serve as serve_actor  # noqa: E402
from learner.config import LearnerConfig  # noqa: E402
from learner.serve import serve as serve_learner  # noqa: E402
from parlmesh.client import PARLController, TaskRequest  # noqa: E402
from parlmesh.testing import free_port  # noqa: E402
from scheduler.config import SchedulerConfig  # noqa: E402
from scheduler.serve import serve as serve_scheduler  # noqa: E402

_STOP_SECONDS = 10.0
_START_SECONDS = 60.0
_TRAJECTORY_SECONDS = 15.0


class Trace:
    """The functions of this repository that are called while it is on, in order; every thread is seen."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._on = False
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Begins anew."""
        self.calls, self._on = [], True
        try:
            yield
        finally:
            self._on = False

    def _hook(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if self._on and event == "call" and file.startswith(str(ROOT)) and ".venv" not in file and "/v1/" not in file:
            self.calls.append(f"{file[len(str(ROOT)) + 1 :]} {frame.f_code.co_qualname}")


async def task(trace: Trace) -> list[str]:
    """One `echo` on a scheduler with SQLite and one actor, after another that opened everything."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        store = {"kind": "sqlite", "path": f"{folder}/scheduler.sqlite"}
        services = _Services(_scheduler(port, store), _actor(port))
        async with services, PARLController(f"127.0.0.1:{port}") as controller:
            await controller.execute_parallel([TaskRequest("echo", {"n": 1})], timeout=_START_SECONDS)
            with trace.on():
                await controller.execute_parallel([TaskRequest("echo", {"n": 2})], timeout=_START_SECONDS)
            return trace.calls


async def trajectory(trace: Trace) -> list[str]:
    """A few seconds of a training."""
    port, learner = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = LearnerConfig.model_validate(
            {
                "listen": {"port": learner},
                "metrics": {"port": None},
                "scheduler": f"127.0.0.1:{port}",
                "runs_dir": folder,
                "training": {"environment": {"id": "CartPole-v1"}, "step_budget": 10_000_000},
            }
        )
        stop = asyncio.Event()
        training = serve_learner(settings, stop)
        async with _Services(_scheduler(port, {"kind": "memory"}), (training, stop), _actor(port, learner)):
            with trace.on():
                await asyncio.sleep(_TRAJECTORY_SECONDS)
            return trace.calls


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
    calls = asyncio.run(walk(Trace()))
    called = {call.split(".<locals>")[0] for call in calls}
    files = {call.split()[0] for call in calls}
    absent = [each for each in named(heading) if each not in called]
    if given.all:
        print("\n".join(dict.fromkeys(calls)))
    print(f"{given.walk}: {len(named(heading))} named, {len(files)} files visited, not called: {absent or 'none'}")


if __name__ == "__main__":
    main()
