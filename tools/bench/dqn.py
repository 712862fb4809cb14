"""How fast DQN trains CartPole-v1, beside stable-baselines3's, at the same number of samples per insert."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import Samples, ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("sb3",)
PACKAGES = ("parlmesh", "numpy", "gymnasium", "grpcio", "torch")
# stable-baselines3's own choice.
SB3_MINIBATCH = 32

# measurement, label
SPEEDS = (
    ("dqn_fleet", "fleet, presets/dqn-cartpole.yaml"),
    ("dqn_serial", "serial: one process, the same"),
    ("dqn_serial_small", "serial, minibatches as small as stable-baselines3's"),
    ("sb3_dqn", "stable-baselines3 DQN, defaults"),
    ("sb3_dqn_like_ours", "stable-baselines3 DQN, our settings"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, steps, peer_steps = (1, "20000", "8000") if quick else (5, "100000", "40000")
    ours, sb3 = ("-m", "tools.bench.ours.training.dqn_speed"), str(PEERS / "sb3_dqn.py")
    return [
        Measurement("dqn_fleet", (*ours, "--fleet", "--steps", steps), runs, 300, seeded=True),
        Measurement("sb3_dqn", (sb3, "--steps", peer_steps), runs, 300, "sb3", seeded=True),
        Measurement("dqn_serial", (*ours, "--steps", steps), runs, 300, seeded=True),
        Measurement("sb3_dqn_like_ours", (sb3, "--like-ours", "--steps", peer_steps), runs, 300, "sb3", seeded=True),
        Measurement(
            "dqn_serial_small", (*ours, "--minibatch", str(SB3_MINIBATCH), "--steps", steps), runs, 300, seeded=True
        ),
    ]


def rows(findings: Findings) -> list[Row]:
    """The speed of each, with its settings."""
    return [
        Row(f"{name}_steps_per_second", f"steps/s  {label}", _speed(findings, name), _settings(findings, name))
        for name, label in SPEEDS
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians; `same_minibatch` compares equal numbers of gradient steps too."""
    defaults = _speed(findings, "sb3_dqn")
    return {
        "dqn_fleet_over_sb3": ratio(_speed(findings, "dqn_fleet"), defaults),
        "dqn_serial_over_sb3": ratio(_speed(findings, "dqn_serial"), defaults),
        "dqn_serial_over_sb3_same_minibatch": ratio(_speed(findings, "dqn_serial_small"), defaults),
        "dqn_serial_over_sb3_like_ours": ratio(_speed(findings, "dqn_serial"), _speed(findings, "sb3_dqn_like_ours")),
        "dqn_fleet_over_serial": ratio(_speed(findings, "dqn_fleet"), _speed(findings, "dqn_serial")),
    }


def _speed(findings: Findings, name: str) -> Samples | None:
    return findings.samples(name, "steps_per_second")


def _settings(findings: Findings, name: str) -> str:
    results = findings.results.get(name)
    if not results:
        return findings.reasons.get(name, "not measured")
    found = results[0]
    return (
        f"{found['environments']} environments, minibatch {found['minibatch']}, "
        f"{found['gradient_steps_per_step']:.3f} gradient steps and {found['samples_per_insert']:.1f} samples per step"
    )


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=("sb3",)))
