from tools.bench.federation.federated import FIGURES, KNOWN_PEERS, derived, plan, rows
from tools.bench.ground.measuring import Findings


def test_every_figure_has_a_measurement_and_every_peer_is_known():
    names = {measurement.name for measurement in plan(quick=False)}
    assert {name for _, _, name, _ in FIGURES} == names
    assert {measurement.peer for measurement in plan(quick=False)} <= {"", *KNOWN_PEERS}
    assert {measurement.name for measurement in plan(quick=True)} <= names


def test_figures_that_were_not_measured_are_there_without_a_value():
    findings = Findings(results={"small": [{"round_seconds": 0.05}], "legacy_small": [{"round_seconds": 0.1}]})
    found = {row.key: row.samples for row in rows(findings)}
    assert found["round_seconds_100k"] is not None
    assert found["simulate_1000_seconds"] is None
    assert derived(findings)["over_flower_legacy_100k"] == 0.5
