"""Follows a task, or trajectories for a while, through real services; the walks are in docs/architecture.md.

python tools/walk.py task               says which functions of the page were not called, and through which files the
                                        task itself went, stay by stay: its hops, as the page counts them
python tools/walk.py trajectory --all   also prints every function that was called, in the order of first calls
"""

import argparse
import asyncio
import re
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from google.protobuf.message import Message

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


_MARK = "the task that is followed"
_OWN_TOPS = ("parlmesh", "scheduler", "actor", "learner")
_SERVICES = {"parlmesh/client/": "client", "scheduler/": "scheduler", "actor/": "actor"}
_GATE = "parlmesh/rpc/server/gate.py"
# What happens to a task because time passes is no part of its walk.
_TIME = "Core.tick"
_DEPTH = 5
_LARGEST_RECORD = 40


def holds(value: object, marks: Sequence[str], depth: int = _DEPTH) -> bool:
    """Whether it is, or as a record holds, something that is marked; services that keep many records do not count."""
    if isinstance(value, str):
        return any(mark in value for mark in marks)
    if isinstance(value, bytes | bytearray | memoryview):
        return any(mark.encode() in bytes(value) for mark in marks)
    if not depth or isinstance(value, int | float | type(None)):
        return False
    if isinstance(value, Message):
        return holds(value.SerializeToString(), marks)
    if isinstance(value, dict):
        return any(holds(each, marks, depth - 1) for pair in [*value.items()][:20] for each in pair)
    if isinstance(value, tuple | list | set | deque):
        return any(holds(each, marks, depth - 1) for each in [*value][:20])
    if type(value).__module__.split(".")[0] not in _OWN_TOPS or hasattr(value, "__aenter__"):
        return False
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = [getattr(value, name, None) for name in slots] + [*getattr(value, "__dict__", {}).values()]
    return len(fields) <= _LARGEST_RECORD and any(holds(each, marks, 1) for each in fields)


class Trace:
    """The functions of this repository that are called while it is on, in order; every thread is seen."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.marks: Sequence[str] = ()
        """What is followed: `stays` has the files that it went into, by service, on the way out and on the way back."""
        self.stays: dict[tuple[str, bool], dict[str, str]] = {}
        self._entries = 0
        self._on = False
        self._busy = threading.local()
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Begins anew."""
        self.calls, self.stays, self._entries, self._on = [], {}, 0, True
        try:
            yield
        finally:
            self._on = False

    def _hook(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._on or event not in ("call", "return") or not (file := _own_file(frame)):
            return
        if event == "call":
            self.calls.append(f"{file} {frame.f_code.co_qualname}")
        if self.marks and not getattr(self._busy, "now", False):
            # What is asked here calls functions too.
            self._busy.now = True
            try:
                if holds(_arguments(frame) if event == "call" else argument, self.marks):
                    self._enter(frame, file, event)
            finally:
                self._busy.now = False

    def _enter(self, frame: FrameType, file: str, event: str) -> None:
        """Counts the file, and the one that called it and so had it before, once in each stay."""
        chain = [(each, frame.f_code.co_qualname) for frame in _chain(frame) if (each := _own_file(frame))]
        service = next((name for each, _ in chain for top, name in _SERVICES.items() if each.startswith(top)), "")
        if frame.f_code.co_name == "__init__" or not service or any(each.endswith(_TIME) for _, each in chain):
            return
        self._entries += file == _GATE and event == "call"
        stay = self.stays.setdefault((service, self._entries > 1), {})
        for each, found in chain[1:2] + chain[:1]:
            stay.setdefault(each, found)


def _chain(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _own_file(frame: FrameType) -> str:
    file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return file if file.split("/")[0] in _OWN_TOPS and "/v1/" not in file else ""


def _arguments(frame: FrameType) -> list[object]:
    code = frame.f_code
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals[name] for name in named if name not in ("self", "cls") and name in frame.f_locals]


async def task(trace: Trace) -> list[str]:
    """One `echo` on a scheduler with SQLite and one actor, after another that opened everything."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        store = {"kind": "sqlite", "path": f"{folder}/scheduler.sqlite"}
        services = _Services(_scheduler(port, store), _actor(port))
        async with services, PARLController(f"127.0.0.1:{port}") as controller:
            (first,) = await controller.execute_parallel([TaskRequest("echo", {"n": 1})], timeout=_START_SECONDS)
            prefix, number = first.task_id.rsplit("-", 1)
            trace.marks = (_MARK, f"{prefix}-{int(number) + 1}")
            with trace.on():
                await controller.execute_parallel([TaskRequest("echo", {"n": _MARK})], timeout=_START_SECONDS)
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
    trace = Trace()
    calls = asyncio.run(walk(trace))
    called = {call.split(".<locals>")[0] for call in calls}
    files = {call.split()[0] for call in calls}
    absent = [each for each in named(heading) if each not in called]
    if given.all:
        print("\n".join(dict.fromkeys(calls)))
    for (service, back), stay in sorted(trace.stays.items(), key=lambda each: each[0][1]):
        print(f"{service}{', on the way back' * back}: {len(stay)} hops")
        print("".join(f"   {file:52} {function}\n" for file, function in stay.items()), end="")
    print(f"{given.walk}: {len(named(heading))} named, {len(files)} files visited, not called: {absent or 'none'}")


if __name__ == "__main__":
    main()
