"""How much faster a fleet trains than one process where steps compute, where they wait, and on pictures."""

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

# world, actors of its fleet, steps of about a dozen updates or more, what its steps do
WORLDS = (
    ("computing", 2, 32_768, "2 ms of compute a step"),
    ("waiting", 4, 131_072, "2 ms of waiting a step"),
    ("pictures", 2, 12_288, "84 x 84 x 4 pictures, Nature network"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, ours = 1 if quick else 3, ("-m", "tools.bench.ours.training.environments", "--world")
    measurements = []
    for world, actors, steps, _ in WORLDS:
        given = (*ours, world, "--steps", str(steps // 2 if quick else steps))
        measurements.append(Measurement(f"{world}_serial", given, runs, 300, seeded=True))
        measurements.append(Measurement(f"{world}_fleet", (*given, "--actors", str(actors)), runs, 300, seeded=True))
    images = ("-m", "tools.bench.ours.training.images", "--updates", "3")
    measurements.append(Measurement("images", images, runs, 120, seeded=True))
    measurements.append(Measurement("sb3_images", (str(PEERS / "sb3_images.py"),), runs, 300, "sb3", seeded=True))
    return measurements


def rows(findings: Findings) -> list[Row]:
    """The speed of each, with what held it back; then processor time on pictures."""
    found = []
    for world, actors, _, label in WORLDS:
        for mode, place in (("serial", "serial"), ("fleet", f"fleet of {actors} actors")):
            name = f"{world}_{mode}"
            samples = findings.samples(name, "steps_per_second")
            found.append(Row(f"{name}_steps_per_second", f"steps/s  {label}, {place}", samples, _kept(findings, name)))
    for name, label in (("images", "collector and trainer in one process"), ("sb3_images", "stable-baselines3 PPO")):
        note = findings.reasons.get(name, "")
        found.append(
            Row(f"{name}_cpu_ms_per_step", f"processor ms a step  pictures, {label}", _cpu(findings, name), note)
        )
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians."""
    values = {
        f"{world}_fleet_over_serial": ratio(
            findings.samples(f"{world}_fleet", "steps_per_second"),
            findings.samples(f"{world}_serial", "steps_per_second"),
        )
        for world, *_ in WORLDS
    }
    return {**values, "images_cpu_over_sb3": ratio(_cpu(findings, "images"), _cpu(findings, "sb3_images"))}


def _cpu(findings: Findings, name: str) -> Samples | None:
    return findings.samples(name, "cpu_ms_per_step")


def _kept(findings: Findings, name: str) -> str:
    results = findings.results.get(name)
    if not results:
        return findings.reasons.get(name, "not measured")
    found = results[0]
    return (
        f"{found['cpu_ms_per_step']:.2f} processor ms a step, starts included;"
        f" learner waits {found['learner_idle_ratio']:.0%}, actors {found['actor_idle_ratio']:.0%};"
        f" an update {found['update_seconds']:.2f} s"
    )


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=()))
