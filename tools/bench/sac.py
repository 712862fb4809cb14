"""How fast SAC trains Pendulum-v1, beside stable-baselines3's: the same network, minibatch and updates per step."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("sb3",)
PACKAGES = ("parlmesh", "numpy", "gymnasium", "torch")

# measurement, figure, label; figures per CPU second hold on a busy machine too.
FIGURES = (
    ("sac_serial", "steps_per_second", "steps/s  serial: `parlmesh up --serial`"),
    ("sac_parts", "steps_per_second", "steps/s  collector and trainer alone"),
    ("sac_parts", "steps_per_cpu_second", "steps/CPU s  collector and trainer alone"),
    ("sb3_sac", "steps_per_second", "steps/s  stable-baselines3 SAC, defaults"),
    ("sb3_sac", "steps_per_cpu_second", "steps/CPU s  stable-baselines3 SAC, defaults"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, steps = (1, "1000") if quick else (5, "5000")
    ours, sb3 = ("-m", "tools.bench.ours.training.sac_speed"), str(PEERS / "sb3_sac.py")
    return [
        Measurement("sac_parts", (*ours, "--parts", "--steps", steps), runs, 600, seeded=True),
        Measurement("sb3_sac", (sb3, "--steps", steps), runs, 600, "sb3", seeded=True),
        Measurement("sac_serial", (*ours, "--steps", str(int(steps) + 1000)), runs, 600, seeded=True),
    ]


def rows(findings: Findings) -> list[Row]:
    """Speeds, then where the time of a step goes."""
    return [Row(f"{name}_{key}", label, findings.samples(name, key), "") for name, key, label in FIGURES]


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians, then microseconds of processor time per step, by part."""
    serial, alone, peer = (
        findings.samples(name, "steps_per_second") for name in ("sac_serial", "sac_parts", "sb3_sac")
    )
    cpu, peer_cpu = (findings.samples(name, "steps_per_cpu_second") for name in ("sac_parts", "sb3_sac"))
    results = findings.results.get("sac_parts") or [{"cpu_microseconds_per_step": {}}]
    return {
        "sac_serial_over_sb3": ratio(serial, peer),
        "sac_parts_over_sb3": ratio(alone, peer),
        "sac_parts_over_sb3_cpu": ratio(cpu, peer_cpu),
        **{f"cpu_us_{name.replace(' ', '_')}": each for name, each in results[0]["cpu_microseconds_per_step"].items()},
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=("sb3",)))
