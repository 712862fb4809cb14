"""Validates the settings of a learning task."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput

S = TypeVar("S", bound=Config)


def parse_settings(model: type[S], task: str, settings: Mapping[str, Any]) -> S:
    """The settings as `model`; InvalidInput names an invalid one with its value and the allowed range."""
    try:
        return model.model_validate(dict(settings))
    except ValidationError as error:
        raise InvalidInput(f"settings of {task}: {describe_errors(model, error).message}", reason="CONFIG") from error
