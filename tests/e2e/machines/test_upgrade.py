"""The release before beside this one: its actor, client, journal and run against ours, and ours against its."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parlmesh.testing import Process, free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# What was released last; docs/upgrading.md names it too.
PREVIOUS = "5ddfcc3"
ROOT = Path(__file__).parents[3]
PATIENCE = 200.0
TRAINING: dict[str, Any] = {
    "training.num_envs": 4,
    "training.hidden": "[8]",
    "training.goal_return": "null",
    "training.evaluation_episodes": 2,
    "training.evaluation_interval_steps": 1_000,
    "training.checkpoint_interval_versions": 5,
}
SUBMIT = """
import asyncio, sys
from parlmesh.client import PARLController, TaskRequest

async def main(address):
    async with await PARLController.connect(address) as controller:
        requests = [TaskRequest("echo", {"number": number}) for number in range(200)]
        outcomes = await controller.execute_parallel(requests, timeout=120)
        assert [outcome.unwrap()["number"] for outcome in outcomes] == list(range(200)), outcomes
        assert (await controller.get_statistics()).completed_tasks >= 200
        assert [actor.node_id for actor in await controller.list_actors()]

asyncio.run(main(*sys.argv[1:]))
"""


@dataclass(frozen=True)
class Release:
    """The sources of one release; all use the same interpreter and libraries."""

    root: Path

    def start(self, stack: ExitStack, module: str, event: str, **settings: Any) -> Process:
        arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        environment = {"PYTHONPATH": str(self.root)}
        process = stack.enter_context(Process(module, *arguments, cwd=self.root, environment=environment))
        process.wait_for(event, PATIENCE)
        return process

    def scheduler(self, stack: ExitStack, port: int, path: Path) -> Process:
        return self.start(
            stack, "scheduler", "serving", **{"listen.port": port, "metrics.port": "null", "store.path": path}
        )

    def actor(self, stack: ExitStack, port: int, learner: int = 1, name: str = "a") -> Process:
        settings = {"scheduler": f"127.0.0.1:{port}", "learner": f"127.0.0.1:{learner}", "metrics.port": "null"}
        return self.start(stack, "actor", "connected", **settings, node_id=name, actor_id=name)

    def learner(self, stack: ExitStack, port: int, scheduler: int, run_dir: Path, budget: int) -> Process:
        steps = "trajectory_steps" if self.root == ROOT else "fragment_steps"
        settings = {"scheduler": f"127.0.0.1:{scheduler}", "listen.port": port, "metrics.port": "null"}
        settings |= {"run_dir": run_dir, "training.step_budget": budget, f"training.{steps}": 8, **TRAINING}
        return self.start(stack, "learner", "serving", **settings)

    def run(self, script: str, *arguments: object) -> str:
        command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
        environment = {"PYTHONPATH": str(self.root)}
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("previous")
    packages = ("actor", "learner", "scheduler", "parlmesh", "presets")
    found = subprocess.run(["git", "archive", PREVIOUS, *packages], cwd=ROOT, capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"the release before, {PREVIOUS}, is not in this clone")
    subprocess.run(["tar", "-x", "-C", folder], input=found.stdout, check=True)
    return Release(folder)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


PRESENT = Release(ROOT)


def test_an_old_actor_and_an_old_client_work_with_this_scheduler(
    previous: Release, stack: ExitStack, tmp_path: Path
) -> None:
    port = free_port()
    PRESENT.scheduler(stack, port, tmp_path / "scheduler.sqlite")
    previous.actor(stack, port)
    previous.run(SUBMIT, f"127.0.0.1:{port}")
    PRESENT.run(SUBMIT, f"127.0.0.1:{port}")


def test_this_actor_and_this_client_work_with_an_old_scheduler(
    previous: Release, stack: ExitStack, tmp_path: Path
) -> None:
    port = free_port()
    previous.scheduler(stack, port, tmp_path / "scheduler.sqlite")
    PRESENT.actor(stack, port)
    previous.run(SUBMIT, f"127.0.0.1:{port}")
    PRESENT.run(SUBMIT, f"127.0.0.1:{port}")


QUEUE = """
import asyncio, sys
from parlmesh.client import PARLController, TaskRequest

async def main(address):
    async with await PARLController.connect(address) as controller:
        for number in range(50):
            await controller.submit_task("echo", {"number": number})

asyncio.run(main(*sys.argv[1:]))
"""
COUNT = """
import asyncio, sys, time
from parlmesh.client import PARLController

async def main(address, finished):
    deadline = time.monotonic() + 120
    async with await PARLController.connect(address) as controller:
        while (found := (await controller.get_statistics()).completed_tasks) < int(finished):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.1)
        print(found)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "back"])
def test_a_journal_goes_over(previous: Release, stack: ExitStack, tmp_path: Path, *, forward: bool) -> None:
    before, after = (previous, PRESENT) if forward else (PRESENT, previous)
    port, path = free_port(), tmp_path / "scheduler.sqlite"
    scheduler = before.scheduler(stack, port, path)
    before.run(QUEUE, f"127.0.0.1:{port}")
    scheduler.kill()
    after.scheduler(stack, port, path)
    after.actor(stack, port)
    assert after.run(COUNT, f"127.0.0.1:{port}", 50).strip() == "50"


def test_a_fleet_is_upgraded_as_the_page_says(previous: Release, stack: ExitStack, tmp_path: Path) -> None:
    port, learner_port, path, run_dir = free_port(), free_port(), tmp_path / "scheduler.sqlite", tmp_path / "run"
    scheduler = previous.scheduler(stack, port, path)
    learner = previous.learner(stack, learner_port, port, run_dir, 10**9)
    actor = previous.actor(stack, port, learner_port)

    def trains() -> None:
        """Some updates more than there were."""
        highest = _highest(run_dir)
        wait_until(lambda: _highest(run_dir) > highest + 5, PATIENCE)

    trains()
    scheduler.terminate()
    scheduler.wait(PATIENCE)
    PRESENT.scheduler(stack, port, path)
    highest = _highest(run_dir)
    # The release before takes a submit that its scheduler cut off (CANCELLED) for an error that is its own, and ends;
    # whoever runs it starts it again.
    wait_until(lambda: not learner.running or _highest(run_dir) > highest + 5, PATIENCE)
    if not learner.running:
        assert "CANCELLED" in learner.lines[-1]
        learner = previous.learner(stack, learner_port, port, run_dir, 10**9)
        trains()
    newer = PRESENT.actor(stack, port, learner_port, name="b")
    actor.terminate()
    actor.assert_exits(0, PATIENCE)
    trains()
    learner.terminate()
    learner.assert_exits(0, PATIENCE)
    saved = _highest(run_dir)
    after = PRESENT.learner(stack, learner_port, port, run_dir, 10**9)
    assert after.wait_for("run_resumed", PATIENCE)["checkpoint_version"] >= saved - 5
    trains()
    assert newer.running


def _highest(run_dir: Path) -> int:
    """The newest checkpoint's version."""
    return max((int(path.name[1:]) for path in (run_dir / "checkpoints").glob("v????????")), default=0)
