"""Whether memory stays flat while a fleet trains at full speed: resident size of each service and its slope."""

import argparse
import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.report import Row, shown
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ()
PACKAGES = ("parlmesh", "numpy", "grpcio", "protobuf", "torch")
SERVICES = ("learner", "actor", "scheduler")
MINUTES, QUICK_MINUTES = 10.0, 1.0
SLACK_SECONDS = 150


def plan(quick: bool, minutes: float = MINUTES) -> list[Measurement]:
    minutes = QUICK_MINUTES if quick else minutes
    arguments = ("-m", "tools.bench.ours.training.memory", "--minutes", str(minutes))
    return [Measurement("training", arguments, 1, minutes * 60 + SLACK_SECONDS)]


def rows(findings: Findings) -> list[Row]:
    found = []
    for service in SERVICES:
        slope = findings.samples("training", f"{service}_mb_per_hour")
        note = interval(findings, service)
        found.append(Row(f"{service}_mb_per_hour", f"MB per hour  {service}", slope, note))
        size = findings.samples("training", f"{service}_mb")
        found.append(Row(f"{service}_mb", f"MB at the end  {service}", size, findings.reasons.get("training", "")))
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    """The ends of the confidence intervals."""
    values: dict[str, float | None] = {}
    for service in SERVICES:
        for end in ("low", "high"):
            samples = findings.samples("training", f"{service}_{end}")
            values[f"{service}_mb_per_hour_{end}"] = None if samples is None else samples.median
    return values


def interval(findings: Findings, service: str) -> str:
    low, high = (findings.samples("training", f"{service}_{end}") for end in ("low", "high"))
    if low is None or high is None:
        return findings.reasons.get("training", "")
    return f"95 % between {shown(low.median)} and {shown(high.median)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="how long to watch without --quick (default: %(default)s)"
    )


def main(options: Options) -> None:
    findings = measure(plan(options.quick, options.more.minutes), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS, add_arguments=add_arguments))
