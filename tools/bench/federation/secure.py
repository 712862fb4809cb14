"""Seconds of a federated round with a secure sum beside one without, and beside Flower's SecAgg+."""

import sys
from pathlib import Path

# Run as a file, this folder would come first and hide packages of the same names.
if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from tools.bench.ground.measuring import Findings, Measurement
from tools.bench.ground.options import Options, parse_options
from tools.bench.ground.places import PEERS
from tools.bench.ground.report import Row
from tools.bench.ground.samples import Samples, ratio
from tools.bench.ground.session import measure, print_report

KNOWN_PEERS = ("flower",)
PACKAGES = ("parlmesh", "cryptography", "grpcio", "numpy", "uvloop")
SIZE = "100000"

# key, label, measurement, key of its result
FIGURES = (
    ("plain_round_seconds", "seconds a round  10 nodes, 100k parameters, plain", "plain", "round_seconds"),
    ("secure_round_seconds", "seconds a round  with a secure sum", "secure", "round_seconds"),
    (
        "flower_plain_round_seconds",
        "seconds a round  Flower's workflow over pipes, plain",
        "flower_plain",
        "round_seconds",
    ),
    ("flower_secure_round_seconds", "seconds a round  Flower's SecAgg+ over pipes", "flower_secure", "round_seconds"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, rounds = (1, "15") if quick else (3, "30")
    ours = ("-m", "tools.bench.ours.federated.federated_rounds", "--parameters", SIZE, "--rounds", rounds)
    # Without its SuperLink: under load a node's token there is older than its process, and no round ends.
    theirs = (str(PEERS / "flower_workflow.py"), "--parameters", SIZE, "--rounds", "6" if quick else "12")
    return [
        Measurement("plain", ours, runs, 120),
        Measurement("secure", (*ours, "--secure"), runs, 120),
        Measurement("flower_plain", theirs, runs, 300, "flower"),
        Measurement("flower_secure", (*theirs, "--secure"), runs, 300, "flower"),
    ]


def rows(findings: Findings) -> list[Row]:
    return [
        Row(key, label, findings.samples(name, value), findings.reasons.get(name, ""))
        for key, label, name, value in FIGURES
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    def seconds(name: str) -> Samples | None:
        return findings.samples(name, "round_seconds")

    return {
        "secure_over_plain": ratio(seconds("secure"), seconds("plain")),
        "flower_secure_over_plain": ratio(seconds("flower_secure"), seconds("flower_plain")),
        "secure_over_flower_secure": ratio(seconds("secure"), seconds("flower_secure")),
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
