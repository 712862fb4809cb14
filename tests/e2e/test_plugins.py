"""Plug-ins through the command line, with real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/plugins"
SECONDS = 110


def run(*arguments, **options):
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)


@pytest.mark.slow
def test_a_fleet_trains_an_environment_of_one_file_with_a_network_of_another(tmp_path):
    done = run(
        "parlmesh.cli",
        "up",
        "--plain",
        "--free-ports",
        *("--runs-dir", str(tmp_path), "--run-id", "one", "--actors", "1", "--steps", "2000", "--no-goal"),
        *("--plugin", f"{EXAMPLES}/corridor.py:plugin", "--plugin", f"{EXAMPLES}/residual.py:plugin"),
        *("--environment", "Corridor-v0", "--set", "training.network=residual", "--set", "training.num_envs=8"),
        *("--set", "training.evaluation_interval_steps=1000000", "--set", "training.evaluation_episodes=1"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "one/summary.json").read_text())
    assert (summary["state"], summary["steps"] >= 2000) == ("finished", True)
    assert (tmp_path / "one/actor-0.yaml").read_text().count("residual.py:plugin") == 1


def test_a_missing_plugin_ends_the_process_with_one_sentence():
    done = run("actor", "--plugin", "nowhere:plugin", "--set", "metrics.port=null", "--set", "log.level=error")
    assert done.returncode == 2
    assert "plugin 'nowhere:plugin': there is no module 'nowhere'" in done.stderr
