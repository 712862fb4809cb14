"""How fast a fleet trains CartPole-v1 and how soon it holds 475, beside our serial mode and the peers."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement, Result
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import Samples, ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("sb3", "rllib", "samplefactory")
FEW_ENVIRONMENTS, MANY_ENVIRONMENTS = 64, 1024
# One rollout of stable-baselines3 with its defaults and 8 environments.
SB3_ROLLOUT_STEPS = 8 * 2048
PACKAGES = ("parlmesh", "numpy", "gymnasium", "grpcio", "uvloop", "torch")
FULL_ONLY = "not in --quick"

# measurement, label
SPEEDS = (
    ("fleet", "fleet: scheduler, learner, 2 actors"),
    ("serial", "serial: one process"),
    ("sb3", "stable-baselines3 PPO, defaults, 8 environments"),
    ("sb3_own_threads", "  the same with torch's own number of threads"),
    ("sb3_one_thread", "  the same with 1 torch thread"),
    ("sb3_like_ours", "stable-baselines3 PPO, our settings"),
    ("rllib_ppo", "RLlib PPO, defaults"),
    ("rllib_impala", "RLlib IMPALA, defaults"),
    ("sample_factory", "Sample Factory APPO"),
)
# prefix of the keys, measurement, label
GOALS = (
    ("", "goal", "fleet, presets/ppo-cartpole.yaml"),
    ("defaults_", "defaults_goal", "fleet, defaults"),
    ("sb3_", "sb3_goal", "stable-baselines3 PPO, the zoo's settings"),
)
# key, measurement, environments
ACTING = (
    ("actor_steps_per_second", "acting", FEW_ENVIRONMENTS),
    (f"actor_steps_per_second_{MANY_ENVIRONMENTS}", "acting_many", MANY_ENVIRONMENTS),
)


def plan(quick: bool) -> list[Measurement]:
    runs, steps = (2, 60_000) if quick else (5, 300_000)
    training = ("-m", "tools.bench.ours.training.training")
    acting = ("-m", "tools.bench.ours.training.acting", "--seconds", "1" if quick else "3", "--environments")
    sb3 = str(PEERS / "sb3_speed.py")
    sb3_default = (sb3, "--steps", str(SB3_ROLLOUT_STEPS * (1 if quick else 3)))
    measurements = [
        Measurement("fleet", (*training, "--steps", str(steps)), runs, 120, seeded=True),
        Measurement("sb3_one_thread", (*sb3_default, "--threads", "1"), 1 if quick else 3, 300, "sb3", seeded=True),
        Measurement("serial", (*training, "--serial", "--steps", str(steps)), 1 if quick else runs, 120, seeded=True),
        Measurement("goal", (*training, "--preset", "ppo-cartpole"), 1 if quick else 5, 180, seeded=True),
        Measurement("defaults_goal", training, 1 if quick else 5, 180, seeded=True),
        *(Measurement(name, (*acting, str(count)), 1 if quick else runs, 60) for _, name, count in ACTING),
    ]
    if quick:
        return measurements
    rllib, factory = str(PEERS / "rllib_speed.py"), str(PEERS / "sample_factory_speed.py")
    return [
        *measurements,
        Measurement("sb3_own_threads", sb3_default, 3, 300, "sb3", seeded=True),
        Measurement("sb3_like_ours", (sb3, "--like-ours", "--steps", "61440"), 3, 120, "sb3", seeded=True),
        Measurement("sb3_goal", (str(PEERS / "sb3_goal.py"),), 5, 300, "sb3", seeded=True),
        Measurement("rllib_ppo", (rllib, "--algorithm", "ppo"), 3, 300, "rllib", seeded=True),
        Measurement("rllib_impala", (rllib, "--algorithm", "impala"), 3, 300, "rllib", seeded=True),
        Measurement("sample_factory", (factory,), 3, 240, "samplefactory", seeded=True),
    ]


def rows(findings: Findings) -> list[Row]:
    """Speeds, then the steps to the goal, then acting alone."""
    found = [
        Row(f"{name}_steps_per_second", f"steps/s  {label}", speed(findings, name), _settings(findings, name))
        for name, label in SPEEDS
    ]
    for prefix, name, label in GOALS:
        for unit in ("seconds", "steps"):
            samples = findings.samples(name, f"{unit}_to_goal")
            found.append(Row(f"{prefix}{unit}_to_475", f"{unit} to hold 475  {label}", samples, _held(findings, name)))
    for key, name, count in ACTING:
        note = findings.reasons.get(name, "")
        found.append(Row(key, f"steps/s  acting alone, {count} environments", speed(findings, name), note))
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    """Derived figures: ratios of medians, and the worst seeds."""
    fleet = speed(findings, "fleet")
    # With each peer's default settings.
    peers = [
        found for name in ("sb3", "rllib_ppo", "rllib_impala", "sample_factory") if (found := speed(findings, name))
    ]
    values: dict[str, float | None] = {
        "fleet_over_sb3": ratio(fleet, speed(findings, "sb3")),
        "fleet_over_best_peer": ratio(fleet, max(peers, key=lambda samples: samples.median, default=None)),
        "fleet_over_sb3_like_ours": ratio(fleet, speed(findings, "sb3_like_ours")),
        "fleet_over_serial": ratio(fleet, speed(findings, "serial")),
        "seconds_to_475_over_sb3": ratio(
            findings.samples("goal", "seconds_to_goal"), findings.samples("sb3_goal", "seconds_to_goal")
        ),
    }
    for prefix, name, _ in GOALS:
        for unit in ("seconds", "steps"):
            samples = findings.samples(name, f"{unit}_to_goal")
            values[f"{prefix}worst_{unit}_to_475"] = None if samples is None else samples.spread[1]
    return values


def take_faster_sb3(findings: Findings) -> None:
    """`sb3` is the faster of its two: torch's own number of threads, which spin, is very slow beside other load."""
    names = [name for name in ("sb3_own_threads", "sb3_one_thread") if speed(findings, name) is not None]
    if names:
        findings.results["sb3"] = findings.results[max(names, key=lambda name: _median(findings, name))]
    else:
        findings.reasons["sb3"] = findings.reasons["sb3_one_thread"]


def speed(findings: Findings, name: str) -> Samples | None:
    return findings.samples(name, "steps_per_second")


def _median(findings: Findings, name: str) -> float:
    samples = speed(findings, name)
    return 0.0 if samples is None else samples.median


def settings(result: Result) -> str:
    """The settings behind a speed: steps/s with other batches and epochs are not like for like."""
    return (
        f"{result['environments']} environments, batch {result['batch']}, minibatch {result['minibatch']}, "
        f"{result['epochs']} epochs"
    )


def _settings(findings: Findings, name: str) -> str:
    results = findings.results.get(name)
    return settings(results[0]) if results else findings.reasons.get(name, FULL_ONLY)


def _held(findings: Findings, name: str) -> str:
    results = findings.results.get(name)
    if not results:
        return findings.reasons.get(name, FULL_ONLY)
    return f"{sum(result.get('steps_to_goal') is not None for result in results)} of {len(results)} seeds held it"


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    take_faster_sb3(findings)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=("sb3",)))
