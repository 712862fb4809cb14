"""Fleets of real processes, started by hand as an operator would."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parlmesh.testing import Process, free_port

START_SECONDS = 60.0


@pytest.fixture(scope="session", autouse=True)
def _without_page() -> None:
    """An extra process costs each fleet a second, so only the tests of the page ask for it."""
    os.environ.setdefault("PARLMESH_UP__DASHBOARD", "false")


class Fleet:
    """A scheduler, a learner and actors on free ports; every setting can be overridden."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.scheduler_port, self.learner_port, self.relay_port = free_port(), free_port(), free_port()
        self._stack = stack

    @property
    def scheduler_address(self) -> str:
        return f"127.0.0.1:{self.scheduler_port}"

    @property
    def learner_address(self) -> str:
        return f"127.0.0.1:{self.learner_port}"

    @property
    def relay_address(self) -> str:
        return f"127.0.0.1:{self.relay_port}"

    def scheduler(self, **settings: Any) -> Process:
        defaults = {
            "listen.port": self.scheduler_port,
            "metrics.port": "null",
            "store.path": self.run_dir.parent / "scheduler.sqlite",
        }
        return self._start("scheduler", {**defaults, **settings})

    def learner(self, **settings: Any) -> Process:
        defaults = {
            "listen.port": self.learner_port,
            "metrics.port": "null",
            "scheduler": self.scheduler_address,
            "run_dir": self.run_dir,
        }
        return self._start("learner", {**defaults, **settings})

    def relay(self, **settings: Any) -> Process:
        defaults = {"listen.port": self.relay_port, "metrics.port": "null", "learner": self.learner_address}
        return self._start("parlmesh.relay", {**defaults, **settings})

    def actor(self, index: int = 0, **settings: Any) -> Process:
        defaults = {
            "node_id": f"actor-{index}",
            "actor_id": f"actor-{index}",
            "incarnation": 1,
            "metrics.port": "null",
            "scheduler": self.scheduler_address,
            "learner": self.learner_address,
        }
        return self._start("actor", {**defaults, **settings}, event="connected")

    def _start(self, module: str, settings: dict[str, Any], event: str = "serving") -> Process:
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        process = self._stack.enter_context(Process(module, *arguments))
        process.wait_for(event, START_SECONDS)
        return process


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(tmp_path, stack)
