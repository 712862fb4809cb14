"""How fast arrays reach tasks and return, the cost of one array for many tasks, and whether a gigabyte works."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("ray", "dask")
PACKAGES = ("parlmesh", "grpcio", "numpy", "xxhash")
WHO = {"ours": "parlmesh", "ray": "Ray", "dask": "Dask distributed"}
FIGURES = (
    ("echo_1mb_per_second", "MB/s  echo of arrays of 1 MB"),
    ("new_1mb_per_second", "MB/s  new arrays for arrays of 1 MB"),
    ("echo_10mb_per_second", "MB/s  echo of arrays of 10 MB"),
    ("new_10mb_per_second", "MB/s  new arrays for arrays of 10 MB"),
    ("shared_40mb_seconds", "seconds  one array of 40 MB, put once, read by 200 tasks"),
    ("large_1gb_seconds", "seconds  one array of 1 GB, put and read by a task"),
    ("client_peak_mb", "MB  largest resident size of the client"),
    ("worker_peak_mb", "MB  largest resident size of another process"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, scale = (1, "0.25") if quick else (3, "1")
    scripts = {
        "ours": ("-m", "tools.bench.ours.scheduler.payload"),
        "ray": (str(PEERS / "ray_payload.py"),),
        "dask": (str(PEERS / "dask_payload.py"),),
    }
    return [
        Measurement(name, (*script, "--scale", scale), runs, 300, "" if name == "ours" else name)
        for name, script in scripts.items()
    ]


def rows(findings: Findings) -> list[Row]:
    return [
        Row(f"{name}_{key}", f"{label}  {who}", findings.samples(name, key), findings.reasons.get(name, ""))
        for key, label in FIGURES
        for name, who in WHO.items()
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    def over(key: str, peer: str) -> float | None:
        return ratio(findings.samples("ours", key), findings.samples(peer, key))

    return {f"{key}_over_{peer}": over(key, peer) for key, _ in FIGURES[:6] for peer in KNOWN_PEERS}


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
