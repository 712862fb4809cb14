"""Worlds: steps a second, what presets learn beside every baseline and stable-baselines3, and what tuning gains."""

import argparse
import json
import sys
from pathlib import Path

# Run as a file, this folder would come first and hide packages of the same names.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("sb3",)
PACKAGES = ("parlmesh", "numpy", "gymnasium", "torch", "optuna", "scipy")
BASELINES = ("random", "static", "greedy_latency", "greedy_load", "kubernetes")
ROUTES = ("policy", "random", "shortest_etx", "recomputed_etx", "load_aware_etx", "ecmp", "backpressure")
PEER_STEPS, QUICK_STEPS = 200_000, 20_000
# A trial computes for little more than a second: with fewer, the fleet's start would be a good part of the time.
SPEED_TRIALS = "32"

# key, world, arguments, environments
SPEEDS: tuple[tuple[str, str, dict[str, int], int], ...] = (
    ("placement_v1", "parlmesh/Placement-v1", {}, 256),
    ("placement_v2", "parlmesh/Placement-v2", {}, 256),
    ("placement_v3", "parlmesh/Placement-v3", {}, 256),
    ("placement_v3_100x50", "parlmesh/Placement-v3", {"nodes": 100, "deployments": 50}, 16),
    ("routing", "parlmesh/MeshRouting-v0", {}, 256),
)
# measurement, preset, its criterion
PLACEMENTS = (
    ("ppo_v3", "ppo-placement", "PPO, Placement-v3"),
    ("q_v1", "q-placement", "Q-learning, Placement-v1"),
    ("dqn_v1", "dqn-placement", "DQN, Placement-v1"),
    ("dqn_v2", "dqn-placement-v2", "DQN, Placement-v2"),
)


def plan(quick: bool) -> list[Measurement]:
    stepping, training = ("-m", "tools.bench.ours.worlds.world_steps"), ("-m", "tools.bench.ours.worlds.world_training")
    tuning = ("-m", "tools.bench.ours.worlds.tuned_trials")
    limit = ("--steps", str(QUICK_STEPS)) if quick else ()
    seconds, few, many = ("1", 1, 1) if quick else ("3", 3, 5)
    peer_steps = str(QUICK_STEPS if quick else PEER_STEPS)
    found = [
        Measurement(
            f"speed_{key}",
            (
                *stepping,
                "--world",
                world,
                "--kwargs",
                json.dumps(kwargs),
                "--environments",
                str(count),
                "--seconds",
                seconds,
            ),
            few,
            120,
        )
        for key, world, kwargs, count in SPEEDS
    ]
    found += [
        Measurement(name, (*training, "--preset", preset, *limit), many if name == "ppo_v3" else few, 1800, seeded=True)
        for name, preset, _ in PLACEMENTS
    ]
    found += [
        Measurement("routing", (*training, "--preset", "ppo-routing", *limit), few, 1800, seeded=True),
        Measurement(
            "ppo_v3_peer_steps", (*training, "--preset", "ppo-placement", "--steps", peer_steps), few, 1800, seeded=True
        ),
        Measurement("sb3_v3", (str(PEERS / "sb3_worlds.py"), "--steps", peer_steps), few, 3600, "sb3", seeded=True),
    ]
    if not quick:
        found += [
            Measurement("small", (*training, "--preset", "ppo-placement-small"), many, 1800, seeded=True),
            Measurement("tuned", tuning, few, 3600, seeded=True),
            Measurement("tune_one", (*tuning, "--speed", "--workers", "1", "--trials", SPEED_TRIALS), few, 3600),
            Measurement("tune_two", (*tuning, "--speed", "--workers", "2", "--trials", SPEED_TRIALS), few, 3600),
            Measurement("wait_one", (*tuning, "--speed", "--waiting", "--workers", "1", "--trials", "8"), few, 3600),
            Measurement("wait_two", (*tuning, "--speed", "--waiting", "--workers", "2", "--trials", "8"), few, 3600),
        ]
    return found


def rows(findings: Findings) -> list[Row]:
    """Speeds, then rewards per step, then routing, then tuning."""

    def row(key: str, label: str, name: str, value: str) -> Row:
        return Row(key, label, findings.samples(name, value), findings.reasons.get(name, ""))

    found = [
        row(f"{key}_steps_per_second", f"steps/s  {world}, {count} environments", f"speed_{key}", "steps_per_second")
        for key, world, _, count in SPEEDS
    ]
    found += [
        row(f"{key}_steps_per_cpu_second", f"steps per second of CPU  {world}", f"speed_{key}", "steps_per_cpu_second")
        for key, world, _, _ in SPEEDS
    ]
    for name, _, label in PLACEMENTS:
        found.append(row(f"{name}_reward", f"reward  {label}", name, "reward"))
        found += [row(f"{name}_{one}_reward", f"reward    {one.replace('_', '-')}", name, one) for one in BASELINES]
        found.append(row(f"{name}_train_seconds", "seconds   of training", name, "train_seconds"))
        found.append(row(f"{name}_train_cpu_seconds", "seconds   of all processors", name, "train_cpu_seconds"))
    found += [
        row(
            "ppo_v3_peer_steps_reward",
            "reward  PPO, Placement-v3, as many steps as the peer",
            "ppo_v3_peer_steps",
            "reward",
        ),
        row("sb3_v3_reward", "reward  stable-baselines3 PPO, Placement-v3", "sb3_v3", "reward"),
        row("sb3_v3_train_seconds", "seconds   of training", "sb3_v3", "train_seconds"),
        row("small_reward", "reward  PPO, 3 nodes and 2 deployments", "small", "reward"),
        row("small_best", "reward    the best course, all known beforehand", "small", "best"),
        row("small_insured", "reward    the best operations, all known but bursts", "small", "insured"),
        row("small_replanned", "reward    a planner that knows only the model", "small", "replanned"),
        row("small_gap", "gap to the best course", "small", "gap"),
        row("small_insured_gap", "gap to the best operations, all known but bursts", "small", "insured_gap"),
        row("small_replanned_gap", "gap to a planner that knows only the model", "small", "replanned_gap"),
    ]
    for condition in ("calm", "loaded", "failing"):
        for one in ROUTES:
            for value in ("delivered", "etx"):
                key = f"{condition}_{one}_{value}"
                found.append(row(f"routing_{key}", f"{value}  {condition}: {one.replace('_', '-')}", "routing", key))
    found += [
        row(
            "tuned_better_of_three", "seeds of 3 on which tuned settings beat the defaults", "tuned", "better_of_three"
        ),
        row("tune_one_trials_per_minute", "trials a minute, 1 actor", "tune_one", "trials_per_minute"),
        row("tune_two_trials_per_minute", "trials a minute, 2 actors", "tune_two", "trials_per_minute"),
        row("wait_one_trials_per_minute", "trials that wait a minute, 1 actor", "wait_one", "trials_per_minute"),
        row("wait_two_trials_per_minute", "trials that wait a minute, 2 actors", "wait_two", "trials_per_minute"),
    ]
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians, and how much more a step earns than under the best baseline."""
    tunes = ("tune_one", "tune_two", "wait_one", "wait_two")
    one, two, wait_one, wait_two = (findings.samples(name, "trials_per_minute") for name in tunes)
    ours = findings.samples("ppo_v3", "reward")
    baselines = [findings.samples("ppo_v3", name) for name in BASELINES]
    medians = [samples.median for samples in baselines if samples is not None]
    return {
        "tune_two_over_one": ratio(two, one),
        "wait_two_over_one": ratio(wait_two, wait_one),
        "ppo_v3_over_best_baseline": ours.median - max(medians) if ours is not None and medians else None,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [measurement.name for measurement in plan(quick=False)]
    parser.add_argument("--only", action="append", default=[], choices=names, help="one measurement; repeatable")


def main(options: Options) -> None:
    only = options.more.only
    findings = measure([each for each in plan(options.quick) if not only or each.name in only], options)
    shown = [row for row in rows(findings) if not only or row.samples is not None or row.note]
    ratios = {key: value for key, value in derived(findings).items() if not only or value is not None}
    print_report(shown, ratios, findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=("sb3",), add_arguments=add_arguments))
