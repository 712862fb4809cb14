"""A task's parameters as a checked model, or InvalidInput in one sentence."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parlmesh.errors import InvalidInput
from parlmesh.types import Search


class Parameters(BaseModel):
    """Parameters of one kind; unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def of(cls, kind: str, parameters: Mapping[str, Any]) -> Self:
        """The checked parameters; the error names the first wrong one with its value and the allowed ones."""
        try:
            return cls.model_validate(dict(parameters))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                known = ", ".join(sorted(cls.model_fields))
                raise InvalidInput(f"{kind} has no parameter {name!r}; it has: {known}", parameter=name) from error
            if first["type"] == "missing":
                raise InvalidInput(f"{kind} needs the parameter {name!r}", parameter=name) from error
            raise InvalidInput(
                f"parameter {name!r} of {kind} is {first['input']!r}: {first['msg']}", parameter=name
            ) from error


class SearchParameters(Parameters):
    """How far both sides of a game look ahead."""

    simulations: int = Field(ge=1, le=10_000)
    considered: int = Field(default=16, ge=1, le=1_024)
    value_scale: float = Field(default=0.1, gt=0.0, le=10.0)


def search_of(wanted: SearchParameters | None) -> Search | None:
    """The search as players take it."""
    return None if wanted is None else Search(**wanted.model_dump())
