"""How long honest calls take among useless connections, beside a bare gRPC server in the same run."""

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
PACKAGES = ("parlmesh", "grpcio")
NAME = "connections"
CONDITIONS = {
    "alone": "alone",
    "idle": "among 1,000 idle connections",
    "paced": "among 1,000 resets a second",
    "flood": "among as many resets as one process makes",
    "elsewhere": "the same flood at the other server",
}
SERVERS = {"ours": "a scheduler", "bare": "a bare server"}


def plan(quick: bool) -> list[Measurement]:
    turns, runs = ("1", 1) if quick else ("7", 3)
    arguments = ("-m", "tools.bench.ours.strangers.connections", "--turns", turns, "--calls", "200" if quick else "300")
    return [Measurement(NAME, arguments, runs, 300)]


def rows(findings: Findings) -> list[Row]:
    reason = findings.reasons.get(NAME, "")
    figures = [
        (f"{server}_{condition}_p99_ms", f"ms  p99 of a call to {who}, {where}")
        for server, who in SERVERS.items()
        for condition, where in CONDITIONS.items()
    ]
    figures += [(f"{server}_reset_cpu_us", f"us  of {who}'s cores for a reset") for server, who in SERVERS.items()]
    return [Row(key, label, findings.samples(NAME, key), reason) for key, label in figures]


def derived(findings: Findings) -> dict[str, float | None]:
    """Ratios of medians: to the same server without the connections, and of ours to the bare one."""

    def over(above: str, below: str) -> float | None:
        return ratio(findings.samples(NAME, above), findings.samples(NAME, below))

    found = {
        f"{server}_{condition}_over_alone": over(f"{server}_{condition}_p99_ms", f"{server}_alone_p99_ms")
        for server in SERVERS
        for condition in CONDITIONS
        if condition != "alone"
    }
    return {**found, "reset_cpu_over_bare": over("ours_reset_cpu_us", "bare_reset_cpu_us")}


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
