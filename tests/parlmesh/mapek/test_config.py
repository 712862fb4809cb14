"""Invalid files are refused in a sentence that names the error."""

from pathlib import Path

import pytest

from parlmesh.config import load
from parlmesh.errors import ConfigError
from parlmesh.mapek.config import DEFAULTS, MapekConfig

CPU = "thresholds: [{metric: cpu, above: 80}]\nactions: {mend: {kind: dry_run}}\n"


def test_the_defaults_are_valid() -> None:
    assert load(MapekConfig, file=DEFAULTS, prefix="X").rules


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CPU + "rules: [{symptom: cup, actions: [mend]}]", "the rule for cup never applies: no threshold"),
        (CPU + "rules: [{symptom: anomaly.cpu, actions: [mend]}]", "never applies: no threshold or detector"),
        (
            CPU + "rules: [{symptom: '*', actions: [mend]}, {symptom: cpu, actions: [mend]}]",
            "cpu never applies: *",
        ),
        (CPU + "rules: [{symptom: cpu, actions: [bend]}]", "names the action 'bend'; there are mend"),
        ("thresholds: [{metric: cpu, above: 80}, {metric: cpu, below: 1}]", "threshold of cpu never applies"),
        ("thresholds: [{metric: cpu, above: .nan}]", "finite"),
        ("thresholds: [{metric: cpu}]", "needs exactly one of above and below"),
        ("nodes: [a, b, a]", "nodes has 'a' twice"),
        ("planner: {kind: policy}", "planner.policy must name a file"),
        (
            "actions: {x: {kind: route, confirm_seconds: 5, verify: {after_seconds: 9}}}",
            "longer than verify.after_seconds",
        ),
        ("rules: 7", "rules"),
        ("a: [", "line"),
    ],
)
def test_invalid_settings_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "loop.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(MapekConfig, file=file, prefix="X")
    assert said in caught.value.message


def test_rules_for_symptoms_of_a_custom_analysis_are_allowed() -> None:
    MapekConfig.model_validate(
        {
            "kinds": {"analyse": "mine"},
            "rules": [{"symptom": "anything", "actions": ["mend"]}],
            "actions": {"mend": {"kind": "dry_run"}},
        }
    )
