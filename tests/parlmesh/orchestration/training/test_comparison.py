"""Trainings side by side, from the folders of runs that `parlmesh up` made with real processes."""

import json
import subprocess
import sys

import pytest

from parlmesh.errors import NotFound
from parlmesh.orchestration.training.comparison import read_run, settings_of
from parlmesh.orchestration.training.variants import VARIANTS


def test_a_variant_is_expressed_in_settings_of_up():
    assert settings_of(VARIANTS["never annealed"]) == ['training.custom.reward.schedule="constant"']
    assert 'training.environment.kwargs.assigning="automatic"' in settings_of(VARIANTS["automatic, annealed"])


def test_a_folder_that_is_not_a_run_is_refused(tmp_path):
    with pytest.raises(NotFound, match="it is not a finished run"):
        read_run(tmp_path, VARIANTS["annealed"], 0)


def run(*arguments, cwd):
    command = [sys.executable, "-m", "parlmesh.cli", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=250)


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_command_trains_compares_and_draws(tmp_path):
    arguments = ("orchestration", "compare", "--variant", "annealed", "--variant", "r_perf only", "--steps", "20000")
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "annealed" in done.stdout
    assert (tmp_path / "orchestration.png").stat().st_size > 10_000
    folder = tmp_path / "runs/orchestration/annealed-20000-0"
    before = (folder / "summary.json").stat().st_mtime_ns
    assert run(*arguments, cwd=tmp_path).returncode == 0
    assert (folder / "summary.json").stat().st_mtime_ns == before, "an ended run is used again"


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("preset", "steps"), [("parl-orchestrator", "20000"), ("parl-language", "3000")])
def test_a_fleet_trains_it(tmp_path, preset, steps):
    done = run(
        *("up", "--config", preset, "--plain", "--free-ports", "--actors", "2", "--steps", steps),
        *("--runs-dir", str(tmp_path), "--run-id", "one", "--set", "training.evaluation_interval_steps=1000000"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    points = [json.loads(line) for line in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    assert any("orchestration/sub_agents" in point for point in points)
    assert json.loads((tmp_path / "one/summary.json").read_text())["steps"] >= int(steps)
