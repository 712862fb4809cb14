"""A learner of several processes, by its own children and by torchrun; ranks are killed while they train."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from parlmesh.testing import free_port, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 200.0
SETTINGS: dict[str, Any] = {
    "mode": "serial",
    "training.num_envs": 16,
    "training.trajectory_steps": 32,
    "training.hidden": "[8]",
    "training.goal_return": "null",
    "training.evaluation_episodes": 2,
    "training.evaluation_interval_steps": 20_000,
    "training.step_budget": 30_000,
    "training.checkpoint_interval_versions": 4,
}


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    for name in ("seconds", "steps_per_second"):
        del found[name]
    return found


def ranks_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True) if "ranks" in " ".join(child.cmdline())]


def test_a_killed_rank_changes_nothing_and_a_killed_learner_leaves_none(fleet):
    whole = fleet.learner(**SETTINGS, **{"training.processes": 2}, run_dir=fleet.folder / "whole")
    whole.wait_for("run_ended", PATIENCE)
    whole.terminate()
    whole.assert_exits(0)

    process = fleet.learner(**SETTINGS, **{"training.processes": 2})
    process.wait_for("ranks_joined", PATIENCE)
    (rank,) = ranks_of(process.pid)
    os.kill(rank, signal.SIGKILL)
    process.wait_for("rank_lost", PATIENCE)
    process.wait_for("run_ended", PATIENCE)
    assert summary(fleet.run_dir) == summary(fleet.folder / "whole")
    process.terminate()
    process.assert_exits(0)

    again = fleet.learner(**SETTINGS, **{"training.processes": 2}, run_dir=fleet.folder / "again")
    again.wait_for("ranks_joined", PATIENCE)
    (rank,) = ranks_of(again.pid)
    again.kill()
    wait_until(lambda: not psutil.pid_exists(rank), PATIENCE)


def test_torchrun_starts_all_ranks_again_from_the_checkpoint(tmp_path: Path) -> None:
    run_dir, log = tmp_path / "run", tmp_path / "log"
    settings = {**SETTINGS, "run_dir": run_dir, "listen.port": free_port(), "metrics.port": "null"}
    settings |= {"training.step_budget": 60_000, "scheduler": "127.0.0.1:1"}
    arguments = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]

    def events(name: str) -> list[dict[str, Any]]:
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, *launch, "-m", "learner", *arguments], stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: any((run_dir / "checkpoints").glob("v*")), PATIENCE)
        workers = psutil.Process(process.pid).children()
        other = [worker for worker in workers if worker.environ().get("RANK") == "1"]
        assert len(other) == 1
        other[0].kill()
        wait_until(lambda: events("run_resumed"), PATIENCE)
        wait_until(lambda: events("run_ended"), PATIENCE)
        (resumed,), ended = events("run_resumed"), events("run_ended")
        assert resumed["steps"] > 0
        assert ended[-1]["state"] == "finished"
        assert ended[-1]["steps"] >= 60_000
        process.terminate()
        process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
