"""Parameters of the four phases' tasks, validated before use."""

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parlmesh.errors import InvalidInput

from .config import DetectionConfig, ProbesConfig, ThresholdConfig
from .node.analysis import MOST_METRICS
from .planning.trained_planner import MOST_FEATURES, ActionModel

INSTEAD_OF = "instead_of"
"""Parameter of a dry run: the action it stands for."""


class TaskParameters(BaseModel):
    """Common to all phases."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    node: str = Field(min_length=1, max_length=200)


class MonitorParameters(TaskParameters):
    """The readings to take."""

    probes: ProbesConfig = ProbesConfig()


class AnalyseParameters(TaskParameters):
    """One reading, and the thresholds and detectors that check it."""

    loop: str = Field(min_length=1, max_length=200)
    reading: str = Field(min_length=1, max_length=200)
    """Identifies the reading; repeating it changes nothing."""
    metrics: dict[str, float] = Field(max_length=MOST_METRICS)
    thresholds: tuple[ThresholdConfig, ...] = ()
    detection: DetectionConfig = DetectionConfig()


class PlanParameters(TaskParameters):
    """Candidates, and how to choose."""

    planner: str
    seed: str
    candidates: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=100)
    models: dict[str, ActionModel] = Field(default_factory=dict, max_length=100)
    """Models of a trained policy, by action."""
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
    """Undo this decision's action."""
    rollback: bool = True
    """Whether it may be undone, by the loop or, if the loop has ended, by the node."""
    confirm: bool = False
    """Confirm this decision's action."""
    confirm_seconds: float = Field(default=0.0, ge=0, le=86_400)
    """The node undoes the action if it is not confirmed within this time; 0 = no confirmation needed."""


P = TypeVar("P", bound=TaskParameters)


def parsed(model: type[P], kind: str, parameters: dict[str, Any]) -> P:
    """The validated parameters; InvalidInput names the first invalid one."""
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"parameter {name!r} of {kind} is {first.get('input')!r}: {first['msg']}") from None
