"""Seconds of a federated round beside Flower's, the coordinator's memory, and a thousand simulated nodes."""

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
PACKAGES = ("parlmesh", "grpcio", "protobuf", "numpy", "uvloop")
SMALL, LARGE = "100000", "10000000"

# key, label, measurement, key of its result
FIGURES = (
    ("round_seconds_100k", "seconds a round  100k parameters, 10 nodes", "small", "round_seconds"),
    ("flower_legacy_round_seconds_100k", "seconds a round  Flower's gRPC server", "legacy_small", "round_seconds"),
    ("flower_deployment_round_seconds_100k", "seconds a round  Flower's SuperLink", "deployment", "round_seconds"),
    ("round_seconds_10m", "seconds a round  10M parameters, 10 nodes", "large", "round_seconds"),
    ("flower_legacy_round_seconds_10m", "seconds a round  Flower's gRPC server", "legacy_large", "round_seconds"),
    ("coordinator_models_10m", "models  the learner's memory grows by", "large", "coordinator_models"),
    ("simulate_1000_seconds", "seconds  1,000 simulated nodes, 20 rounds", "thousand", "seconds"),
    ("simulate_1000_ms_per_node", "ms a node adds to a round, of 1,000", "thousand", "milliseconds_per_node"),
    ("simulate_250_ms_per_node", "ms a node adds to a round, of 250", "hundreds", "milliseconds_per_node"),
)


def plan(quick: bool) -> list[Measurement]:
    runs, rounds, large_rounds = (1, "15", "4") if quick else (3, "30", "6")
    ours = ("-m", "tools.bench.ours.federated.federated_rounds", "--parameters")
    many = ("-m", "tools.bench.ours.federated.federated_simulation", "--nodes")
    legacy, deployment = str(PEERS / "flower_legacy.py"), str(PEERS / "flower_deployment.py")
    measurements = [
        Measurement("small", (*ours, SMALL, "--rounds", rounds), runs, 120),
        Measurement("legacy_small", (legacy, "--parameters", SMALL, "--rounds", rounds), runs, 120, "flower"),
        Measurement("large", (*ours, LARGE, "--rounds", large_rounds), runs, 300),
    ]
    if not quick:
        measurements += [
            Measurement("legacy_large", (legacy, "--parameters", LARGE, "--rounds", "4"), runs, 300, "flower"),
            Measurement("deployment", (deployment, "--parameters", SMALL, "--rounds", "4"), 1, 300, "flower"),
            Measurement("thousand", (*many, "1000", "--rounds", "20"), runs, 300),
            Measurement("hundreds", (*many, "250", "--rounds", "20"), 1, 300),
        ]
    return measurements


def rows(findings: Findings) -> list[Row]:
    return [
        Row(key, label, findings.samples(name, value), findings.reasons.get(name, ""))
        for key, label, name, value in FIGURES
    ]


def derived(findings: Findings) -> dict[str, float | None]:
    def seconds(name: str) -> Samples | None:
        return findings.samples(name, "round_seconds")

    return {
        "over_flower_legacy_100k": ratio(seconds("small"), seconds("legacy_small")),
        "over_flower_deployment_100k": ratio(seconds("small"), seconds("deployment")),
        "over_flower_legacy_10m": ratio(seconds("large"), seconds("legacy_large")),
        "cost_per_node_1000_over_250": ratio(
            findings.samples("thousand", "milliseconds_per_node"), findings.samples("hundreds", "milliseconds_per_node")
        ),
    }


def main(options: Options) -> None:
    findings = measure(plan(options.quick), options)
    print_report(rows(findings), derived(findings), findings, options, packages=PACKAGES)


if __name__ == "__main__":
    main(parse_options(__doc__, known=KNOWN_PEERS, usual=KNOWN_PEERS))
