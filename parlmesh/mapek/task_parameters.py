"""What the tasks of the four phases are given, checked before anything is done with it."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parlmesh.errors import InvalidInput

from .config import DetectionConfig, ProbesConfig, ThresholdConfig
from .node.analysis import MOST_METRICS
from .planning.trained_planner import MOST_FEATURES, ActionModel

INSTEAD_OF = "instead_of"
"""Among the parameters of a dry run: the action that it stands for."""


class TaskParameters(BaseModel):
    """Of every phase."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    node: str = Field(min_length=1, max_length=200)


class MonitorParameters(TaskParameters):
    """What to read."""

    probes: ProbesConfig = ProbesConfig()


class AnalyseParameters(TaskParameters):
    """One reading, and what it is held against."""

    loop: str = Field(min_length=1, max_length=200)
    reading: str = Field(min_length=1, max_length=200)
    """Names the reading; the same one again changes nothing."""
    metrics: dict[str, float] = Field(max_length=MOST_METRICS)
    thresholds: tuple[ThresholdConfig, ...] = ()
    detection: DetectionConfig = DetectionConfig()


class PlanParameters(TaskParameters):
    """Candidates, and how to choose."""

    planner: str
    seed: str
    candidates: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=100)
    models: dict[str, ActionModel] = Field(default_factory=dict, max_length=100)
    """Of a trained policy, by action."""
    features: tuple[float, ...] = Field(default=(), max_length=MOST_FEATURES)


class ExecuteParameters(TaskParameters):
    """One action on the node, under a lease."""

    decision: str = Field(min_length=1, max_length=200)
    loop: str = Field(min_length=1, max_length=200)
    lease_seconds: float = Field(gt=0, le=100_000)
    action: str = ""
    """Kind of the action; empty = take the lease and do nothing."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    undo: bool = False
    """Undo what this decision did."""
    rollback: bool = True
    """It may be undone: by the loop, and by the node when the loop is gone."""
    confirm: bool = False
    """What this decision did stands."""
    confirm_seconds: float = Field(default=0.0, ge=0, le=86_400)
    """The node undoes what is not confirmed within so long; 0 = it stands at once."""


P = TypeVar("P", bound=TaskParameters)


def parsed(model: type[P], kind: str, parameters: dict[str, Any]) -> P:
    """InvalidInput names the first that is wrong."""
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"parameter {name!r} of {kind} is {first.get('input')!r}: {first['msg']}") from None
