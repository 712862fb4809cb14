"""Turns ranges into a trial's settings, and back. Independent of fleets."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput
from parlmesh.training.settings.run import TrainingConfig

from .config import Range, TuneConfig

if TYPE_CHECKING:
    import optuna


def suggested(trial: "optuna.trial.Trial", search: Mapping[str, Range]) -> dict[str, Any]:
    """The sampler's values by key."""
    return {key: _one(trial, key, wanted) for key, wanted in search.items()}


def decoded(parameters: Mapping[str, Any], search: Mapping[str, Range]) -> dict[str, Any]:
    """Values by key from a stored trial's parameters."""
    return {
        key: json.loads(value) if key in search and search[key].choices else value for key, value in parameters.items()
    }


def defaults(config: TuneConfig) -> dict[str, Any]:
    """The unchanged settings as a trial's parameters; those outside their range are left to the sampler."""
    whole = checked({**config.training}).model_dump(mode="json")
    found: dict[str, Any] = {}
    for key, wanted in config.search.items():
        value: Any = whole
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if wanted.choices:
            if value in [_plain(choice) for choice in wanted.choices]:
                found[key] = json.dumps(value)
        elif isinstance(value, (int, float)) and wanted.low <= value <= wanted.high:  # type: ignore[operator]
            found[key] = value
    return found


def settings_of(training: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the training section with the values set by key."""
    found: dict[str, Any] = json.loads(json.dumps(training))
    for key, value in values.items():
        *sections, last = key.split(".")
        section = found
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return found


def checked(training: Mapping[str, Any]) -> TrainingConfig:
    """The validated settings of a run; InvalidInput names the invalid key."""
    from pydantic import ValidationError

    try:
        return TrainingConfig.model_validate(dict(training))
    except ValidationError as error:
        raise InvalidInput(f"training: {describe_errors(TrainingConfig, error).message}", reason="TRAINING") from None


def check_search(config: TuneConfig) -> None:
    """Raises InvalidInput when a searched key does not exist or cannot take one of its values."""
    for key, wanted in config.search.items():
        if key == "step_budget":
            raise InvalidInput(
                "search.step_budget is not allowed: all trials take the study's `steps`", reason="SEARCH"
            )
        ends = list(wanted.choices) if wanted.choices else [wanted.low, wanted.high]
        for value in ends:
            try:
                checked(settings_of(config.training, {key: value}))
            except InvalidInput as error:
                raise InvalidInput(f"search.{key}: {error.message}", reason="SEARCH") from None


def _one(trial: "optuna.trial.Trial", key: str, wanted: Range) -> Any:
    if wanted.choices:
        # As JSON: Optuna stores only text and numbers.
        return json.loads(trial.suggest_categorical(key, [json.dumps(choice) for choice in wanted.choices]))
    low, high = wanted.low, wanted.high
    assert low is not None
    assert high is not None
    if isinstance(low, int) and isinstance(high, int):
        return trial.suggest_int(key, low, high, log=wanted.log)
    return trial.suggest_float(key, float(low), float(high), log=wanted.log)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
