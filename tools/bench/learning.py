"""The results of the presets over several seeds: greedy returns beside the mark, and the steps it took to hold it."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.report import Row, shown
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ()
SEEDS = 5
PACKAGES = ("parlmesh", "numpy", "gymnasium", "torch")


@dataclass(frozen=True, slots=True)
class Entry:
    """A preset and its mark."""

    preset: str
    environment: str
    algorithm: str
    mark: float
    published: str
    """Results that others report, and after how many steps."""
    quick: bool = False
    limit_seconds: float = 900.0

    @property
    def key(self) -> str:
        return self.preset.replace("-", "_")


_CLEANRL = "the mark, after 1M (CleanRL, v4, sampled episodes)"
# "zoo" are the tables of rl-baselines3-zoo: one run, deterministic play.
ENTRIES = (
    Entry("ppo-cartpole", "CartPole-v1", "PPO", 475.0, "500 after 100k (zoo)", quick=True),
    Entry("dqn-cartpole", "CartPole-v1", "DQN", 475.0, "500 after 50k (zoo)", quick=True),
    Entry("q-frozenlake", "FrozenLake-v1", "Q-learning", 0.70, "best possible 0.74", quick=True),
    Entry("q-taxi", "Taxi-v4", "Q-learning", 8.0, "best possible 7.93", quick=True),
    Entry("ppo-cartpole-recurrent", "CartPole-v1 without velocities", "PPO, GRU", 475.0, "500 after 100k (zoo, LSTM)"),
    Entry("ppo-acrobot", "Acrobot-v1", "PPO", -90.0, "-73.5 after 1M (zoo)"),
    Entry("ppo-pendulum", "Pendulum-v1", "PPO", -200.0, "-172.2 after 100k (zoo)"),
    Entry("sac-pendulum", "Pendulum-v1", "SAC", -180.0, "-157.0 after 20k (zoo)"),
    Entry("td3-pendulum", "Pendulum-v1", "TD3", -180.0, "-151.9 after 20k (zoo)"),
    Entry("sac-halfcheetah", "HalfCheetah-v5", "SAC", 4500.0, "9,535 after 1M (zoo, v3)", limit_seconds=18_000.0),
    Entry("sac-hopper", "Hopper-v5", "SAC", 2000.0, "2,326 after 1M (zoo, v3)", limit_seconds=18_000.0),
    Entry("ppo-halfcheetah", "HalfCheetah-v5", "PPO", 1443.0, _CLEANRL, limit_seconds=3600.0),
    Entry("ppo-hopper", "Hopper-v5", "PPO", 2383.0, _CLEANRL, limit_seconds=3600.0),
    Entry("ppo-walker2d", "Walker2d-v5", "PPO", 2288.0, _CLEANRL, limit_seconds=3600.0),
    Entry("ppo-minatar-breakout", "MinAtar Breakout", "PPO, convolutions", 6.5, "-", limit_seconds=3600.0),
    Entry("ppo-lunarlander", "LunarLander-v3", "PPO", 200.0, "242.1 after 1M (zoo, v2)", limit_seconds=3600.0),
)
# Acrobot on experience from exactly this many versions ago, with each kind of targets: the final return of sampled
# play.
LAGS = (0, 1, 4, 8)
LAGGING = tuple((targets, lag) for targets in ("gae", "vtrace") for lag in LAGS)


def plan(quick: bool, seeds: int = SEEDS, only: tuple[str, ...] = (), *, fleet: bool = False) -> list[Measurement]:
    runs = 1 if quick else seeds
    mode = ("--fleet",) if fleet else ()
    found = [
        Measurement(
            entry.key,
            ("-m", "tools.bench.ours.training.learning", "--preset", entry.preset, "--mark", str(entry.mark), *mode),
            runs,
            entry.limit_seconds,
            seeded=True,
        )
        for entry in ENTRIES
        if (entry.preset in only if only else entry.quick or not quick)
    ]
    if "lag" in only or not (only or quick):
        script = ("-m", "tools.bench.ours.training.forced_lag")
        found += [
            Measurement(
                f"{targets}_lag_{lag}", (*script, "--targets", targets, "--lag", str(lag)), runs, 600, seeded=True
            )
            for targets, lag in LAGGING
        ]
    return found


def rows(findings: Findings) -> list[Row]:
    """Three of each preset, one of each lag and kind of targets."""
    found = []
    for entry in ENTRIES:
        label = f"{entry.environment}, {entry.algorithm}"
        held = _held(findings, entry)
        for figure, text in (("final_return", "last return"), ("best_return", "best return")):
            samples = findings.samples(entry.key, figure)
            found.append(Row(f"{entry.key}_{figure}", f"{text}  {label}", samples, held))
        steps = findings.samples(entry.key, "steps_to_mark")
        found.append(Row(f"{entry.key}_steps_to_mark", f"steps to {entry.mark:g}  {label}", steps, held))
    for targets, lag in LAGGING:
        name = f"{targets}_lag_{lag}"
        samples = findings.samples(name, "last_third")
        note = findings.reasons.get(name, "" if samples else "not asked for")
        found.append(Row(f"{name}_return", f"last third  Acrobot-v1, {targets} at lag {lag}", samples, note))
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    """The worst seeds, and what lag costs."""
    values: dict[str, float | None] = {}
    for entry in ENTRIES:
        results = findings.results.get(entry.key)
        best = findings.samples(entry.key, "best_return")
        steps = findings.samples(entry.key, "steps_to_mark")
        values[f"{entry.key}_worst_best_return"] = None if best is None else best.spread[0]
        values[f"{entry.key}_worst_steps_to_mark"] = (
            None if steps is None or not results or len(steps.values) < len(results) else steps.spread[1]
        )
    for targets, lag in LAGGING:
        found = ratio(
            findings.samples(f"{targets}_lag_{lag}", "last_third"), findings.samples("gae_lag_0", "last_third")
        )
        # The returns are below 0: a loss makes the ratio larger.
        values[f"{targets}_lag_{lag}_loss"] = None if found is None else found - 1.0
    return values


def seed_lines(findings: Findings) -> list[str]:
    """Every seed of every preset: last and best return, how training ended, steps to the mark."""
    lines = []
    for entry in ENTRIES:
        for seed, result in enumerate(findings.results.get(entry.key, ())):
            steps = result.get("steps_to_mark")
            lines.append(
                f"{entry.preset} seed {seed}: last {shown(result['final_return'])}, "
                f"best {shown(result['best_return'])}, training's end {shown(result['training_return'])}, "
                f"{'mark not held' if steps is None else f'mark held from {steps:,} steps'} of {result['steps']:,}"
            )
    return lines


def _held(findings: Findings, entry: Entry) -> str:
    results = findings.results.get(entry.key)
    if not results:
        return findings.reasons.get(entry.key, "not asked for")
    held = sum(result.get("steps_to_mark") is not None for result in results)
    return f"{held} of {len(results)} seeds held {entry.mark:g}; published: {entry.published}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = [*(entry.preset for entry in ENTRIES), "lag"]
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each preset (default: %(default)s)")
    parser.add_argument("--only", action="append", default=[], choices=names, help="one preset; repeatable")
    parser.add_argument("--fleet", action="store_true", help="scheduler, learner and two actors instead of one process")


def main(options: Options) -> None:
    chosen = options.more
    wanted = plan(options.quick, chosen.seeds, tuple(chosen.only), fleet=chosen.fleet)
    findings = measure(wanted, options)
    notes = seed_lines(findings)
    names = {measurement.name for measurement in wanted}
    shown_rows = [row for row in rows(findings) if _measured(row.key, names)]
    shown_values = {key: value for key, value in derived(findings).items() if _measured(key, names)}
    print_report(shown_rows, shown_values, findings, options, packages=PACKAGES, notes=notes)


def _measured(key: str, names: set[str]) -> bool:
    """Whether a figure is from one of these measurements: the one with the longest name that fits."""
    known = [*(entry.key for entry in ENTRIES), *(f"{targets}_lag_{lag}" for targets, lag in LAGGING)]
    return max((name for name in known if key.startswith(f"{name}_")), key=len) in names


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=(), add_arguments=add_arguments))
