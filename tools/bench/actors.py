"""How many actors one scheduler process serves: real streams under steady load, and the core alone with many actors."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and its scheduler.py would hide the package of that name.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ()
PACKAGES = ("parlmesh", "grpcio", "uvloop")
CORE = (100, 10_000)
STREAMS = (1_000, 2_000, 4_000, 8_000, 16_000)
BURSTS = f"streams_{STREAMS[0]}_in_bursts"
"""The background load comes fifty tasks at a time."""
# Heartbeats are due every second; actors are lost after ten.
LATE_SECONDS = 2.0
FIGURES = {
    "roundtrip_p50_ms": "ms  round trip of a task, p50",
    "roundtrip_p99_ms": "ms  round trip of a task, p99",
    "oldest_heartbeat_seconds": "seconds  oldest heartbeat; due every 1",
    "fewest_ready": "actors READY at the worst moment",
    "connect_seconds": "seconds  until all are connected",
    "scheduler_cores": "cores  of the scheduler",
    "crowd_cores": "cores  of the process that plays the actors",
    "kilobytes_per_stream": "kB of the scheduler for an actor",
}


def plan(quick: bool) -> list[Measurement]:
    runs, seconds = (1, "5") if quick else (3, "20")
    core, streams = (("-m", f"tools.bench.ours.scheduler.{name}") for name in ("crowd_core", "streams"))
    found = [Measurement(f"core_{count}", (*core, "--actors", str(count)), runs, 120) for count in CORE]
    for count in STREAMS[:1] if quick else STREAMS:
        arguments = (*streams, "--streams", str(count), "--seconds", seconds)
        found.append(Measurement(f"streams_{count}", arguments, runs if count == STREAMS[0] else 1, 240))
    bursts = (*streams, "--streams", str(STREAMS[0]), "--seconds", seconds, "--batch", "50")
    return [*found, Measurement(BURSTS, bursts, runs, 240)]


def rows(findings: Findings) -> list[Row]:
    cost = "microseconds_per_task"
    found = [
        Row(
            f"core_{count}_{cost}",
            f"core, us/task with {count:,} actors",
            findings.samples(f"core_{count}", cost),
            findings.reasons.get(f"core_{count}", ""),
        )
        for count in CORE
    ]
    crowds = {f"streams_{count}": f"{count:,} streams" for count in STREAMS}
    crowds[BURSTS] = f"{STREAMS[0]:,} streams, load in bursts"
    for name, crowd in crowds.items():
        reason = findings.reasons.get(name, "")
        found += [
            Row(f"{name}_{key}", f"{label}, {crowd}", findings.samples(name, key), reason)
            for key, label in FIGURES.items()
        ]
    return found


def derived(findings: Findings) -> dict[str, float | None]:
    def holds(count: int) -> bool:
        oldest = findings.samples(f"streams_{count}", "oldest_heartbeat_seconds")
        ready = findings.samples(f"streams_{count}", "fewest_ready")
        return oldest is not None and ready is not None and oldest.median <= LATE_SECONDS and ready.median == count

    few, many = (findings.samples(f"core_{count}", "microseconds_per_task") for count in CORE)
    return {
        "core_cost_ratio_10k_over_100": ratio(many, few),
        "most_streams_on_time": max((float(count) for count in STREAMS if holds(count)), default=None),
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
