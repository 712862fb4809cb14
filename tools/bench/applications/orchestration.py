"""Results of orchestrators: trained, without auxiliary terms, never annealed, spam, single agent, oracle, by family.

Trainings run in this process with the collector and the trainer that a fleet uses, a process for each seed.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])
# Small matrices: several threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import yaml

from parlmesh.client import PARLController
from parlmesh.orchestration.jobs.families import FAMILIES
from parlmesh.orchestration.jobs.reference_orchestrators import single_agent
from parlmesh.orchestration.jobs.simulation import Limits
from parlmesh.orchestration.jobs.sub_agents import SUB_AGENTS
from parlmesh.orchestration.live import play_job
from parlmesh.orchestration.training.evaluation import (
    Score,
    by_policy,
    evaluate_policy,
    evaluate_references,
    jobs_of,
    oracle_steps,
)
from parlmesh.orchestration.training.serial_training import PLUGIN, train_here
from parlmesh.orchestration.training.variants import variant_named
from parlmesh.policies import load_policy
from parlmesh.policies.numpy_acting import Policy

Run: TypeAlias = dict[str, Any]
Wanted: TypeAlias = tuple[str, int, int, int, int]
Scores: TypeAlias = dict[str, dict[str, Score]]
ROOT = Path(__file__).resolve().parents[3]
SETTINGS = yaml.safe_load((ROOT / "presets/parl-orchestrator.yaml").read_text())["training"]
TRAINED = ("annealed", "r_perf only", "never annealed")
PRIOR = 200
"""Gradient steps of the serial prior."""
# variant, gradient steps of the prior, how many times the training
MORE = (
    ("no entropy, annealed", 0, 1),
    ("no entropy, r_perf only", 0, 1),
    ("no entropy, r_perf only", 0, 2),
    ("no entropy, r_perf only", PRIOR, 1),
    ("no entropy, annealed", PRIOR, 1),
    ("strict, annealed", 0, 1),
    ("strict, r_perf only", 0, 1),
    ("strict, r_perf only", 0, 2),
    ("strict, r_perf only", PRIOR, 1),
    ("strict, annealed", PRIOR, 1),
    ("r_perf only", 0, 2),
    ("r_perf only", 50, 1),
    ("r_perf only", PRIOR, 1),
    ("r_perf only", 800, 1),
    ("r_perf only", PRIOR, 2),
    ("automatic, r_perf only", 0, 1),
    ("automatic, r_perf only", 0, 2),
    ("automatic, r_perf only", PRIOR, 1),
    ("automatic, r_perf only", PRIOR, 2),
    ("annealed", 50, 1),
    ("annealed", PRIOR, 1),
    ("annealed", 800, 1),
)
STEP_SECONDS = 0.02
ENDLESS = Limits(1_000_000, 100, 1_000_000)
COLLAPSED = 2.0
"""A policy that creates fewer sub-agents for a wide job has collapsed into working alone."""


def train(wanted: Wanted, keep: Path | None = None) -> Run:
    """One training, kept in its own file, so that an interrupted benchmark can continue from it."""
    name, prior, times, seed, steps = wanted
    kept = keep and keep / f"{name.replace(', ', '-').replace(' ', '-')}-{prior}-x{times}-{seed}-{steps}.json"
    if kept and kept.exists():
        run: Run = json.loads(kept.read_text())
        run["policy"] = kept.with_suffix(".policy").read_bytes()
        return run
    variant = variant_named(name, prior)
    trained = train_here(variant, SETTINGS, seed, times * steps)
    assigning = variant.environment.get("assigning", "separate")
    scores = evaluate_policy(load_policy(trained.policy), assigning=assigning, seed=seed)
    run = {
        "variant": name,
        "prior": prior,
        "times": times,
        "seed": seed,
        "seconds": round(trained.seconds, 1),
        "scores": {family: asdict(score) for family, score in scores.items()},
    }
    if kept:
        kept.with_suffix(".policy").write_bytes(trained.policy)
        kept.write_text(json.dumps(run))
    return {**run, "policy": trained.policy}


async def live(policy: Policy, jobs: int) -> list[dict[str, float]]:
    """Held-out wide jobs on a fleet of real processes: the speed-up in seconds beside that in critical steps."""
    found = []
    async with PARLController() as controller:
        await controller.initialize(64, actor={"plugins": [PLUGIN]})
        for number, job in enumerate(jobs_of("wide_search", "held_out", jobs, 7)):
            played = {}
            choices = {
                "trained": (by_policy(policy, np.random.default_rng(number)), Limits()),
                "single": (single_agent, ENDLESS),
            }
            for name, (choose, limits) in choices.items():
                started = time.perf_counter()
                result = await play_job(controller, job, choose, step_seconds=STEP_SECONDS, limits=limits)
                # Per sub-task that was done: the two need not do equally many.
                done = result.coverage * job.size
                played[name] = ((time.perf_counter() - started) / done, result.critical_steps / done)
            ratios = [played["single"][index] / played["trained"][index] for index in (0, 1)]
            found.append({"measured": round(ratios[0], 2), "predicted": round(ratios[1], 2)})
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, a short training, no priors")
    parser.add_argument("--peers", choices=("none",), default="none", help="no peer trains such an orchestrator")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=SETTINGS["step_budget"])
    parser.add_argument("--keep", type=Path, help="folder of finished trainings, which are not repeated")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    # `make bench` gives every benchmark the same options.
    parser.add_argument("--wait-quiet", type=float, default=0.0, help="not needed: learning does not depend on load")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.quick:
        options.seeds, options.steps = 2, 150_000
    plan = [(name, 0, 1, seed, options.steps) for seed in range(options.seeds) for name in TRAINED]
    if not options.quick:
        plan += [(*more, seed, options.steps) for more in MORE for seed in range(options.seeds)]
    digests = {name: agent.digest for name, agent in SUB_AGENTS.items()}
    references = evaluate_references()
    oracle = {family: oracle_steps(family) for family in FAMILIES}
    runs = []
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for run in pool.imap(partial(train, keep=options.keep), plan):
            runs.append(run)
            print(line(run, references), file=sys.stderr, flush=True)
    assert digests == {name: agent.digest for name, agent in SUB_AGENTS.items()}
    on_a_fleet = asyncio.run(live(load_policy(runs[0].pop("policy")), 1 if options.quick else 3))
    for found in on_a_fleet:
        print(f"on a fleet: {found['measured']} times as fast, {found['predicted']} by critical steps", file=sys.stderr)
    tables = {family: table(family, runs, references, oracle) for family in FAMILIES}
    for family, rows in tables.items():
        print_table(family, rows)
    collapse = collapse_of(runs)
    for name, count in collapse.items():
        print(f"{name:48} collapsed {count['collapsed']} of {count['seeds']}")
    print("\npython tools/bench/applications/orchestration.py", *sys.argv[1:])
    about = {"steps": options.steps, "seeds": options.seeds, "machine": platform.platform(), "cores": os.cpu_count()}
    print(
        json.dumps(
            {
                **about,
                "families": tables,
                "collapse": collapse,
                "live": on_a_fleet,
                "seconds": [run["seconds"] for run in runs],
            }
        )
    )


def line(run: Run, references: Scores) -> str:
    wide = run["scores"]["wide_search"]
    single = references["single agent"]["wide_search"].work_per_step
    return (
        f"{run['variant']}, prior {run['prior']}, x{run['times']}, seed {run['seed']}: {run['seconds']} s,"
        f" speed-up {wide['work_per_step'] / single:.2f}, success {wide['success']:.2f},"
        f" {wide['sub_agents']:.1f} sub-agents"
    )


def table(family: str, runs: list[Run], references: Scores, oracle: dict[str, float]) -> dict[str, dict[str, float]]:
    """Medians over seeds, and the worst seed."""
    single = references["single agent"][family].work_per_step
    rows: dict[str, dict[str, float]] = {}
    for name, scores in references.items():
        score = scores[family]
        rows[name] = {**_rounded(asdict(score)), "speed_up": round(score.work_per_step / single, 2)}
    for name in TRAINED:
        found = [run["scores"][family] for run in runs if (run["variant"], run["prior"], run["times"]) == (name, 0, 1)]
        speeds = [score["work_per_step"] / single for score in found]
        rows[name] = {
            **_rounded({field: float(np.median([score[field] for score in found])) for field in found[0]}),
            "speed_up": round(float(np.median(speeds)), 2),
            "worst_speed_up": round(min(speeds), 2),
            "worst_success": round(min(score["success"] for score in found), 3),
            "worst_coverage": round(min(score["coverage"] for score in found), 3),
        }
    rows["oracle"] = {"critical_steps": round(oracle[family], 1)}
    return rows


def collapse_of(runs: list[Run]) -> dict[str, dict[str, int]]:
    """How many seeds of each kind of training ended with a policy that works alone on wide jobs."""
    found: dict[str, dict[str, int]] = {}
    for run in runs:
        prior = f", prior {run['prior']}" if run["prior"] else ""
        twice = ", twice the training" if run["times"] == 2 else ""
        row = found.setdefault(f"{run['variant']}{prior}{twice}", {"collapsed": 0, "seeds": 0})
        row["seeds"] += 1
        row["collapsed"] += run["scores"]["wide_search"]["sub_agents"] < COLLAPSED
    return found


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def print_table(family: str, rows: dict[str, dict[str, float]]) -> None:
    fields = (
        "speed_up",
        "worst_speed_up",
        "success",
        "worst_success",
        "coverage",
        "critical_steps",
        "sub_agents",
        "own",
    )
    print(f"\n{family} (held out)\n{'':26}" + "".join(f"{field:>16}" for field in fields))
    for name, row in rows.items():
        print(f"{name:26}" + "".join(f"{row[field]:>16}" if field in row else f"{'':>16}" for field in fields))


if __name__ == "__main__":
    main()
