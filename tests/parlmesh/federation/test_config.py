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
            r"would spend epsilon 9.997 of a budget of 1; noise_multiplier must be at least 7.46",
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


SECURE = {"secure": {"enabled": True}, "gate": {"max_samples": 100}, "quorum": 3, "selection": {"min_nodes": 10}}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rule": {"name": "krum"}, "quorum": 9}, "a secure sum only gives a mean; rule.name must be mean, got krum"),
        ({"buffer_size": 4}, "a secure sum needs rounds; buffer_size must be 0, got 4"),
        ({"gate": {"max_samples": 9, "outlier_factor": 5.0}}, "gate.outlier_factor checks; it must be 0, got 5"),
        ({"gate": {"max_samples": 9, "clip_factor": 2.0}}, "gate.clip_factor checks; it must be 0, got 2"),
        ({"gate": {"max_samples": 9, "max_norm": 1.0}}, "gate.max_norm checks; it must be 0, got 1"),
        ({"gate": {}}, r"gate.max_samples \(1 = all equal\); it must be 1 to 1000000, got 0"),
        ({"compression": {"encoding": "int8"}}, "compression.encoding must be none, got int8"),
        ({"privacy": {"mode": "local"}}, "privacy.mode must not be local"),
        ({"quorum": 2}, "quorum must be >= 3, got 2"),
        ({"selection": {"min_nodes": 10, "over_selection": 2.0}}, "over_selection must be <= 1 / secure.threshold"),
        (
            {"privacy": {"mode": "distributed", "uncounted_nodes": 2}},
            r"a sum may have only 2 nodes .* privacy.uncounted_nodes must be < 2, got 2",
        ),
        (
            {"privacy": {"mode": "distributed", "noise_multiplier": 1e-4}},
            "noise_multiplier of distributed noise must be >= 0.001, got 0.0001",
        ),
        ({"privacy": {"mode": "distributed"}, "secure": {}}, "secure.enabled must be true"),
    ],
)
def test_what_a_secure_sum_cannot_do_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ValidationError, match=sentence):
        FederationConfig.model_validate({**SECURE, **changes})


def test_a_secure_federation_has_no_checks_of_single_updates_and_is_read_back_as_it_was():
    config = FederationConfig.model_validate(SECURE)
    assert (config.gate.outlier_factor, config.gate.clip_factor, config.gate.weight_cap_factor) == (0.0, 0.0, 0.0)
    assert FederationConfig.model_validate(config.model_dump()) == config
    assert FederationConfig().gate.outlier_factor == 5.0
