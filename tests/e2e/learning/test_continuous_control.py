"""SAC at its marks by its presets, seed by seed: Pendulum in a minute, MuJoCo's worlds in half an hour each."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import parlmesh
from parlmesh.api.episodes import evaluate_policy

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(7200)]

# The published figures: rl-baselines3-zoo -157.0 after 20,000 steps, 9,535 and 2,326 after a million (v3).
RUNS = [("sac-pendulum", -180.0, seed) for seed in range(5)]
RUNS += [
    (preset, mark, seed) for preset, mark in (("sac-halfcheetah", 4500.0), ("sac-hopper", 2000.0)) for seed in range(3)
]


@pytest.mark.parametrize(("preset", "mark", "seed"), RUNS)
def test_the_policy_that_a_run_of_sac_keeps_reaches_the_mark_in_unseen_episodes(
    tmp_path: Path, preset: str, mark: float, seed: int
) -> None:
    if preset != "sac-pendulum" and importlib.util.find_spec("mujoco") is None:
        pytest.skip("MuJoCo is not installed: pip install 'parlmesh[mujoco]'")
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--serial", "--free-ports", "--plain", "--config", preset]
    command += ["--runs-dir", str(tmp_path), "--run-id", "run", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    found = evaluate_policy(parlmesh.load_policy(tmp_path / "run"), episodes=50, seed=1_000 + seed)
    print(f"{preset} seed {seed}: {found.mean:.1f} ± {found.half_width:.1f}")
    assert found.mean >= mark
