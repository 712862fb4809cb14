import pytest
from pydantic import ValidationError

from parlmesh.federation.config import FederationConfig


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rule": {"name": "krum", "liars": 2}, "quorum": 6}, "needs at least 7 updates, got 6; quorum is 6"),
        ({"rule": {"name": "multi_krum", "liars": 1, "chosen": 5}, "quorum": 5}, "can choose 1 to 4, got 5"),
        ({"rule": {"name": "trimmed_mean", "liars": 3}, "quorum": 6}, "at least 7 updates; quorum is 6"),
        ({"rule": {"name": "krum"}, "buffer_size": 4}, "buffer_size is 4"),
        ({"quorum": 5, "selection": {"min_nodes": 4}}, "quorum must be <= selection.min_nodes, got 5 and 4"),
        ({"privacy": {"mode": "central"}, "rule": {"name": "median"}}, "rule.name must be mean, got median"),
        ({"privacy": {"mode": "central"}, "buffer_size": 4}, "buffer_size must be 0"),
        ({"quorum": 8, "selection": {"min_nodes": 10, "fraction": 0.1}}, "quorum must be <= 1, got 8"),
        (
            {"privacy": {"mode": "local", "epsilon_budget": 1.0}},
            r"would give away epsilon 9.997 of a budget of 1; noise_multiplier must be at least 7.46",
        ),
        ({"privacy": {"mode": "local"}, "compression": {"encoding": "top_k"}}, "encoding must be none"),
    ],
)
def test_impossible_settings_are_refused_when_configured(values, sentence):
    values.setdefault("selection", {"min_nodes": 20})
    with pytest.raises(ValidationError, match=sentence):
        FederationConfig.model_validate(values)


def test_possible_settings_pass_and_one_node_fewer_does_not():
    def configured(nodes):
        rule, privacy = {"name": "krum", "liars": 2}, {"mode": "local"}
        values = {"rule": rule, "quorum": nodes, "selection": {"min_nodes": nodes}, "privacy": privacy}
        return FederationConfig.model_validate(values)

    config = configured(7)
    assert (config.rule.name, config.rule.liars, config.quorum, config.privacy.mode) == ("krum", 2, 7, "local")
    with pytest.raises(ValidationError):
        configured(6)
