"""A task's parameters as a checked model, or InvalidInput in one sentence."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from parlmesh.errors import InvalidInput


class Parameters(BaseModel):
    """Parameters of one kind; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


P = TypeVar("P", bound=Parameters)


def parse_parameters(model: type[P], kind: str, parameters: Mapping[str, Any]) -> P:
    """The parameters as `model`; the first thing wrong with them is named with its value and what is allowed."""
    try:
        return model.model_validate(dict(parameters))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = ", ".join(sorted(model.model_fields))
            raise InvalidInput(f"{kind} has no parameter {name!r}; it has: {known}", parameter=name) from error
        if first["type"] == "missing":
            raise InvalidInput(f"{kind} needs the parameter {name!r}", parameter=name) from error
        raise InvalidInput(
            f"parameter {name!r} of {kind} is {first['input']!r}: {first['msg']}", parameter=name
        ) from error
