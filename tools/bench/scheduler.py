"""How many tasks a second a fleet takes from submit to outcome, how soon one returns, and the cost of a deep queue."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and this file would hide the package `scheduler`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import Samples, ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("ray", "dask")
FEW, MANY = 1_000, 1_000_000
PACKAGES = ("parlmesh", "grpcio", "protobuf", "uvloop")

# key, label, measurement, key of its result
FIGURES = (
    ("memory_tasks_per_second", "no-op tasks/s  memory store", "memory", "tasks_per_second"),
    ("sqlite_tasks_per_second", "no-op tasks/s  SQLite store", "sqlite", "tasks_per_second"),
    ("ray_tasks_per_second", "no-op tasks/s  Ray", "ray", "tasks_per_second"),
    ("dask_tasks_per_second", "no-op tasks/s  Dask distributed", "dask", "tasks_per_second"),
    ("roundtrip_p50_ms", "round trip ms, p50  memory store", "memory", "roundtrip_p50_ms"),
    ("roundtrip_p99_ms", "round trip ms, p99  memory store", "memory", "roundtrip_p99_ms"),
    ("awake_roundtrip_p50_ms", "round trip ms, p50  cores kept awake", "awake", "roundtrip_p50_ms"),
    ("awake_roundtrip_p99_ms", "round trip ms, p99  cores kept awake", "awake", "roundtrip_p99_ms"),
    ("asyncio_roundtrip_p50_ms", "round trip ms, p50  the client on asyncio's own loop", "asyncio", "roundtrip_p50_ms"),
    ("asyncio_roundtrip_p99_ms", "round trip ms, p99  the client on asyncio's own loop", "asyncio", "roundtrip_p99_ms"),
    ("bare_stream_p50_ms", "round trip ms, p50  one bare gRPC stream; a task passes two", "bare", "p50_ms"),
    ("bare_stream_p99_ms", "round trip ms, p99  one bare gRPC stream", "bare", "p99_ms"),
    ("sqlite_roundtrip_p50_ms", "round trip ms, p50  SQLite store", "sqlite", "roundtrip_p50_ms"),
    ("sqlite_roundtrip_p99_ms", "round trip ms, p99  SQLite store", "sqlite", "roundtrip_p99_ms"),
    ("ray_roundtrip_p50_ms", "round trip ms, p50  Ray", "ray", "roundtrip_p50_ms"),
    ("ray_roundtrip_p99_ms", "round trip ms, p99  Ray", "ray", "roundtrip_p99_ms"),
    ("ray_awake_roundtrip_p50_ms", "round trip ms, p50  Ray, cores kept awake", "ray_awake", "roundtrip_p50_ms"),
    ("ray_awake_roundtrip_p99_ms", "round trip ms, p99  Ray, cores kept awake", "ray_awake", "roundtrip_p99_ms"),
    ("dask_roundtrip_p50_ms", "round trip ms, p50  Dask distributed", "dask", "roundtrip_p50_ms"),
    ("dask_roundtrip_p99_ms", "round trip ms, p99  Dask distributed", "dask", "roundtrip_p99_ms"),
    ("fanout_1500_seconds", "seconds  1,500 x 100 ms on 100 workers", "crowd", "fanout_seconds"),
    ("awake_fanout_1500_seconds", "seconds  the same, cores kept awake", "crowd_awake", "fanout_seconds"),
    ("ray_fanout_1500_seconds", "seconds  the same on 100 Ray actors", "ray_crowd", "fanout_seconds"),
    ("initialize_100_seconds", "seconds  initialize(100)", "crowd", "initialize_seconds"),
    ("ray_initialize_100_seconds", "seconds  100 Ray actors ready", "ray_crowd", "initialize_seconds"),
    ("workers_1000_fewest_ready", "workers READY at the worst moment of 15 s, of 1,000", "multitude", "fewest_ready"),
    (
        "workers_1000_oldest_heartbeat_seconds",
        "seconds  oldest heartbeat of 1,000 workers; due every 1",
        "multitude",
        "oldest_heartbeat_seconds",
    ),
    ("restart_seconds", "seconds  kill -9 with 10,000 queued, 500 running, to serving", "restart", "restart_seconds"),
    ("restart_longest_seconds", "seconds  the longest such restart", "restart", "longest_restart_seconds"),
    ("microseconds_per_task_1k", "core, us/task at 1,000 queued", "shallow", "microseconds_per_task"),
    ("microseconds_per_task_1m", "core, us/task at 1,000,000 queued", "deep", "microseconds_per_task"),
    ("memory_bytes_per_queued_task", "core, bytes per queued task", "deep", "memory_bytes_per_queued_task"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, tasks, peer_tasks = (1, "20000", "2000") if quick else (3, "50000", "10000")
    trips, dask_trips = ("300", "100") if quick else ("1000", "500")
    ours = ("-m", "tools.bench.ours.scheduler.tasks", "--tasks", tasks, "--trips", trips, "--store")
    depth = ("-m", "tools.bench.ours.scheduler.queue_depth", "--queued")
    ray, dask = str(PEERS / "ray_tasks.py"), str(PEERS / "dask_tasks.py")
    measurements = [
        Measurement("memory", (*ours, "memory"), runs, 120),
        Measurement("awake", (*ours, "memory", "--awake"), runs, 120),
        Measurement("asyncio", (*ours, "memory", "--loop", "asyncio"), runs, 120),
        Measurement("bare", ("-m", "tools.bench.ours.scheduler.bare_stream", "--trips", trips), runs, 60),
        Measurement("ray", (ray, "--tasks", peer_tasks, "--trips", trips), runs, 120, "ray"),
        Measurement("ray_awake", (ray, "--tasks", peer_tasks, "--trips", trips, "--awake"), runs, 120, "ray"),
        Measurement("sqlite", (*ours, "sqlite"), runs, 120),
        Measurement("dask", (dask, "--tasks", peer_tasks, "--trips", dask_trips), runs, 180, "dask"),
        Measurement("crowd", ("-m", "tools.bench.ours.scheduler.crowd"), runs, 120),
        Measurement("crowd_awake", ("-m", "tools.bench.ours.scheduler.crowd", "--awake"), runs, 120),
        Measurement("multitude", ("-m", "tools.bench.ours.scheduler.multitude"), 1, 120),
        Measurement("restart", ("-m", "tools.bench.ours.scheduler.restart", "--kills", "2" if quick else "5"), 1, 240),
        Measurement("shallow", (*depth, str(FEW)), runs, 120),
        Measurement("deep", (*depth, str(MANY)), runs, 300),
    ]
    if not quick:
        measurements.append(Measurement("ray_crowd", (ray, "--crowd"), runs, 240, "ray"))
    return measurements


def rows(findings: Findings) -> list[Row]:
    return [
        Row(key, label, findings.samples(name, value), findings.reasons.get(name, ""))
        for key, label, name, value in FIGURES
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    def speed(name: str) -> Samples | None:
        return findings.samples(name, "tasks_per_second")

    def cost(name: str) -> Samples | None:
        return findings.samples(name, "microseconds_per_task")

    return {
        "cost_ratio_1m_over_1k": ratio(cost("deep"), cost("shallow")),
        "memory_over_ray": ratio(speed("memory"), speed("ray")),
        "memory_over_dask": ratio(speed("memory"), speed("dask")),
        "sqlite_over_ray": ratio(speed("sqlite"), speed("ray")),
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
