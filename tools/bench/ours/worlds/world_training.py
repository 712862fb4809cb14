"""A world's preset trained by `parlmesh up` as a user starts it, then evaluated held out, beside the baselines."""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, load_policy
from parlmesh.worlds.placement import baselines as placement
from parlmesh.worlds.placement.environment import PlacementVectorEnv
from parlmesh.worlds.placement.evaluation import (
    evaluate_baseline,
    evaluate_course,
    evaluate_insured,
    evaluate_policy,
    evaluate_replanned,
)
from parlmesh.worlds.placement.optimum import best_possible
from parlmesh.worlds.routing import evaluation as routing
from parlmesh.worlds.routing.baselines import BASELINES as ROUTES

from ..training.learning import up_command
from ..training.training import PRESETS

# No run's seed leads here: runs hash small numbers to seeds, while conditions are seeded one by one.
HELD_OUT = 1_000_000
EPISODES, PACKETS = 32, 2000
TARGETS = (0.3, 0.4, 0.5, 0.6)
# Meshes that no run has seen.
OTHER_MESHES = 9
# Clusters on which no setting was tuned; the run's seed is added.
SMALL_PRESET, SMALL_CLUSTERS = "ppo-placement-small", 100
# Each episode of the bound takes seconds.
BOUNDED_EPISODES = 4
ROUTING_CONDITIONS: Mapping[str, dict[str, float]] = {
    "calm": {"load": 0.0, "link_failures": 0.0},
    "loaded": {"load": 0.8, "link_failures": 0.0},
    "failing": {"load": 0.3, "link_failures": 0.03},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", required=True, help="a file of presets/, without .yaml")
    parser.add_argument("--steps", type=int, default=0, help="0 = the preset's")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    environment = environment_of(arguments.preset)
    name, kwargs = environment["id"], environment.get("kwargs") or {}
    small = arguments.preset == SMALL_PRESET
    if small:
        kwargs = small_cluster(kwargs, arguments.seed)
    policy, spent = trained(arguments.preset, arguments.seed, arguments.steps, kwargs)
    if name == "parlmesh/MeshRouting-v0":
        result = judged_routing(policy, arguments.seed)
    else:
        result = judged_placement(policy, int(name[-1]), kwargs, arguments.seed)
        result |= gaps(result["reward"], kwargs, arguments.seed) if small else {}
    print(json.dumps({**result, **spent}))


def environment_of(preset: str) -> dict[str, Any]:
    """The environment of a preset."""
    found: dict[str, Any] = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text())["training"]["environment"]
    return found


def trained(preset: str, seed: int, steps: int, kwargs: Mapping[str, Any]) -> tuple[Policy, dict[str, float]]:
    """The best policy of a run, and its cost: seconds, and processor seconds, which hardly change on a busy machine."""
    load_plugins(("parlmesh.worlds.plugin:plugin",))
    with tempfile.TemporaryDirectory() as folder:
        command = up_command(preset, seed, Path(folder), fleet=True)
        command += ["--steps", str(steps)] if steps else []
        command += ["--set", f"training.environment.kwargs={json.dumps(kwargs)}"] if kwargs else []
        began, busy = time.perf_counter(), children_seconds()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"parlmesh up ended with code {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        spent = {"train_seconds": time.perf_counter() - began, "train_cpu_seconds": children_seconds() - busy}
        return load_policy((Path(folder) / "run" / "policy.safetensors").read_bytes()), spent


def children_seconds() -> float:
    """Processor seconds of processes that have ended: the command's and those it started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def judged_placement(policy: Policy, version: int, kwargs: Mapping[str, Any], seed: int) -> dict[str, float]:
    """Mean rewards per step; baselines with an autoscaler have the target that suits them best."""
    conditions = HELD_OUT + 1000 * seed
    found = {"reward": evaluate_policy(policy, version, kwargs, EPISODES, conditions).reward}
    for name, kind in placement.BASELINES.items():
        targets = TARGETS if issubclass(kind, placement.Scaled) else (placement.TARGET_UTILISATION,)
        rewards = [evaluate_baseline(name, version, kwargs, EPISODES, conditions, target=one).reward for one in targets]
        found[name.replace("-", "_")] = max(rewards)
    return found


def small_cluster(kwargs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The small cluster that belongs to a run's seed."""
    return {**kwargs, "cluster_seed": SMALL_CLUSTERS + seed}


def gaps(reward: float, kwargs: Mapping[str, Any], seed: int) -> dict[str, float]:
    """How far a policy is below three others in the same episodes: the limit when everything is known beforehand, which
    the best course nearly reaches; the best when everything but bursts is known; and a planner that knows only the
    model. Also how far the best course is below a bound that need not be reachable."""
    conditions = HELD_OUT + 1000 * seed
    limit, best = evaluate_course(kwargs, EPISODES, conditions)
    insured = evaluate_insured(kwargs, EPISODES, conditions)
    replanned = evaluate_replanned(kwargs, EPISODES, conditions)
    _, few = evaluate_course(kwargs, BOUNDED_EPISODES, conditions)
    bound = bounded(kwargs, BOUNDED_EPISODES, conditions)
    return {
        "best": best.reward,
        "best_at_most": limit,
        "insured": insured.reward,
        "replanned": replanned.reward,
        "gap": (limit - reward) / abs(limit),
        "insured_gap": (insured.reward - reward) / abs(insured.reward),
        "replanned_gap": (replanned.reward - reward) / abs(replanned.reward),
        "bound_over_best": (bound - few.reward) / abs(few.reward),
    }


def bounded(kwargs: Mapping[str, Any], episodes: int, conditions: int) -> float:
    """A bound that no policy can exceed, reachable or not."""
    envs = PlacementVectorEnv(episodes, **kwargs)
    envs.reset(seed=conditions)
    world = envs.simulation
    bounds = [best_possible(world.cluster, world.settings, world.coming(one)).rewards.mean() for one in range(episodes)]
    return float(sum(bounds) / len(bounds))


def judged_routing(policy: Policy, seed: int) -> dict[str, float]:
    """Delivered shares and stretch of policy and baselines in unseen meshes."""
    found: dict[str, float] = {}
    for condition, settings in ROUTING_CONDITIONS.items():
        world = {**settings, "topology_seed": OTHER_MESHES + seed}
        judged = {"policy": routing.evaluate_policy(policy, world, PACKETS, HELD_OUT + seed)}
        judged |= {name: routing.evaluate_baseline(name, world, PACKETS, HELD_OUT + seed) for name in ROUTES}
        for name, one in judged.items():
            key = f"{condition}_{name.replace('-', '_')}"
            found |= {f"{key}_delivered": one.delivered, f"{key}_etx": one.etx, f"{key}_reward": one.reward}
    return found


if __name__ == "__main__":
    main()
