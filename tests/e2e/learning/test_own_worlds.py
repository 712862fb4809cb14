"""The worlds that come with parlmesh, trained through a fleet by their names; the long ones against the baselines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parlmesh.worlds.placement.baselines import BASELINES as PLACEMENT_BASELINES
from tools.bench.ours.worlds.world_training import (
    SMALL_PRESET,
    environment_of,
    gaps,
    judged_placement,
    judged_routing,
    small_cluster,
    trained,
)

pytestmark = pytest.mark.e2e

OWN = ("ppo-placement", "ppo-placement-small", "ppo-routing", "q-placement", "dqn-placement", "dqn-placement-v2")


def up(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parlmesh.cli", "up", "--free-ports", "--json", "--actors", "1"]
    command += ["--runs-dir", str(folder), "--run-id", "run", *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize(
    "world",
    [
        "parlmesh/Placement-v3",
        pytest.param("parlmesh/MeshRouting-v0", marks=pytest.mark.slow),
        pytest.param("parlmesh/Placement-v1", marks=pytest.mark.slow),
        pytest.param("parlmesh/Placement-v2", marks=pytest.mark.slow),
    ],
)
def test_a_world_trains_through_a_fleet_by_its_name(tmp_path, world):
    done = up(tmp_path, "--environment", world, "--steps", "2048", "--set", "training.evaluation_episodes=1")
    assert done.returncode == 0, done.stderr[-1000:]
    assert json.loads(done.stdout)["state"] == "finished"
    assert (tmp_path / "run" / "policy.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("preset", OWN)
def test_every_preset_of_a_world_is_accepted(tmp_path, preset):
    done = up(tmp_path, "--config", preset, "--steps", "20000")
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_ppo_beats_every_baseline_on_conditions_that_it_never_saw(seed):
    policy, _ = trained("ppo-placement", seed, 0, {})
    found = judged_placement(policy, 3, {}, seed)
    reward = found.pop("reward")
    assert all(reward > other for other in found.values()), {"reward": reward, **found}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_ppo_is_near_the_best_that_could_have_been_reached_on_a_small_cluster(seed):
    cluster = small_cluster(environment_of(SMALL_PRESET)["kwargs"], seed)
    policy, _ = trained(SMALL_PRESET, seed, 0, cluster)
    judged = judged_placement(policy, 3, cluster, seed)
    found = judged | gaps(judged["reward"], cluster, seed)
    print(seed, found)
    # The best that a policy can do without knowing when bursts come; with that knowledge, seed 3 has 11.9 %.
    assert found["insured_gap"] <= 0.1, found
    assert found["reward"] > max(found[name.replace("-", "_")] for name in PLACEMENT_BASELINES), found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("preset", "version"), [("q-placement", 1), ("dqn-placement", 1), ("dqn-placement-v2", 2)])
def test_learnt_values_beat_random_and_static_choices(preset, version, seed):
    policy, _ = trained(preset, seed, 0, {})
    found = judged_placement(policy, version, {}, seed)
    assert found["reward"] > max(found["random"], found["static"]), found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_a_routing_policy_is_as_good_as_shortest_paths_and_better_where_those_fail(seed):
    policy, _ = trained("ppo-routing", seed, 0, {})
    found = judged_routing(policy, seed)
    assert found["calm_policy_delivered"] >= 0.9 * found["calm_shortest_etx_delivered"]
    assert found["calm_policy_etx"] <= 1.1 * found["calm_shortest_etx_etx"]
    for condition in ("loaded", "failing"):
        assert found[f"{condition}_policy_delivered"] > found[f"{condition}_shortest_etx_delivered"]
