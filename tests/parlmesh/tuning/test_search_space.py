"""Ranges and settings."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

pytest.importorskip("optuna")

import optuna

from parlmesh.errors import InvalidInput
from parlmesh.tuning.config import Range, TuneConfig
from parlmesh.tuning.search_space import check_search, decoded, defaults, settings_of, suggested

EXAMPLES = Path(__file__).parents[3] / "examples" / "tuning"
SEARCH = {
    "ppo.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "ppo.epochs": {"low": 2, "high": 9},
    "hidden": {"choices": [[64, 64], [8]]},
}


def study(**changes):
    return TuneConfig.model_validate({"search": SEARCH, **changes})


@pytest.mark.parametrize(
    "wrong",
    [{}, {"low": 1}, {"low": 2, "high": 1}, {"low": 0, "high": 1, "log": True}, {"low": 1, "high": 2, "choices": [1]}],
)
def test_a_range_is_two_numbers_or_some_choices(wrong):
    with pytest.raises(ValidationError):
        Range.model_validate(wrong)


def test_what_a_sampler_proposes_lies_in_its_range_and_can_be_read_again():
    config = study()
    asked = optuna.create_study().ask()
    values = suggested(asked, config.search)
    assert 1e-4 <= values["ppo.learning_rate"] <= 1e-2
    assert values["ppo.epochs"] in range(2, 10)
    assert values["hidden"] in ([64, 64], [8])
    assert decoded(asked.params, config.search) == values


def test_values_are_put_into_the_section_by_their_keys_and_the_given_one_stays():
    given = {"ppo": {"clip": 0.1}}
    assert settings_of(given, {"ppo.epochs": 3, "hidden": [8]}) == {"ppo": {"clip": 0.1, "epochs": 3}, "hidden": [8]}
    assert given == {"ppo": {"clip": 0.1}}


def test_the_unchanged_settings_are_a_trial_of_their_own():
    assert defaults(study()) == {"ppo.learning_rate": 0.003, "ppo.epochs": 4, "hidden": "[64, 64]"}
    assert defaults(study(training={"hidden": [7], "ppo": {"epochs": 50}})) == {"ppo.learning_rate": 0.003}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
def test_the_first_trial_of_an_example_has_unchanged_settings(file):
    config = TuneConfig.model_validate(yaml.safe_load(file.read_text()))
    assert set(defaults(config)) == set(config.search)


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"ppo.learning_rat": {"low": 0.1, "high": 0.2}}, "learning_rat"),
        ({"ppo.discount": {"low": 0.1, "high": 1.2}}, "discount"),
        ({"step_budget": {"low": 1, "high": 2}}, "all trials take"),
        ({"network": {"choices": ["mlp", 3]}}, "network"),
    ],
)
def test_a_search_that_can_never_work_is_refused_before_anything_starts(search, said):
    with pytest.raises(InvalidInput, match=said):
        check_search(study(search=search))
