"""The cost of each store: no-op tasks a second and the round trip of one, in memory, in SQLite and in PostgreSQL."""

import sys
from pathlib import Path

# Run as a file, this folder would come first, and a file beside this one would hide the package `scheduler`.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

PACKAGES = ("parlmesh", "grpcio", "asyncpg", "uvloop")
STORES = {"memory": "memory", "sqlite": "SQLite, synchronous=full", "postgresql": "PostgreSQL, synchronous_commit=on"}


def plan(quick: bool) -> list[Measurement]:
    # In turns, so that a disturbance affects all stores.
    runs, tasks, trips = (1, "20000", "200") if quick else (5, "50000", "1000")
    module = ("-m", "tools.bench.ours.scheduler.tasks", "--tasks", tasks, "--trips", trips, "--store")
    return [Measurement(store, (*module, store), runs, 240) for store in STORES]


def rows(findings: Findings) -> list[Row]:
    figures = (("tasks_per_second", "no-op tasks/s"), ("roundtrip_p50_ms", "ms, p50"), ("roundtrip_p99_ms", "ms, p99"))
    return [
        Row(f"{store}_{key}", f"{label}  {name}", findings.samples(store, key), findings.reasons.get(store, ""))
        for key, label in figures
        for store, name in STORES.items()
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    speeds = {store: findings.samples(store, "tasks_per_second") for store in STORES}
    return {"postgresql_over_sqlite": ratio(speeds["postgresql"], speeds["sqlite"])}


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=(), usual=()))
