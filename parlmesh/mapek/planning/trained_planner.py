"""A trained planner: how likely each rule's actions are to work in the current situation. Stored as JSON.

Each action has a logistic regression on the readings at its tries (Newton's method with a ridge). A policy only ranks
the actions that a rule allows; it cannot add any.
"""

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.types import Array

from ..types import Decision, Status, Symptom

LARGEST_BYTES = 4 << 20
MOST_FEATURES = 128
_MOST_CONTEXTS = 8
_FURTHEST = 3.0
"""Features are clipped at this many deviations from the mean."""
_RIDGE = 0.5
_BIAS_RIDGE = 0.05
_ROUNDS = 25
_SHARE = 0.8
"""Share of a rule's decisions that must contain a metric for it to be used."""

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e12, le=1e12)]
Label = Annotated[str, Field(max_length=400)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ActionModel(_Part):
    """One action: what each feature adds to the log odds of success, and how long the action takes."""

    weights: tuple[Number, ...] = Field(min_length=1, max_length=MOST_FEATURES)
    seconds: float = Field(gt=0, le=1e6)
    tries: int = Field(ge=0)

    def chance(self, features: Sequence[float]) -> float:
        """The probability that it works."""
        odds = sum(weight * value for weight, value in zip(self.weights, features, strict=True))
        return 1.0 / (1.0 + math.exp(-min(max(odds, -30.0), 30.0)))


class RuleModel(_Part):
    """The features of a rule and the models of its actions.

    Features: 1, critical, how far past the limit, contexts, metrics, and the metrics again per context: the same
    reading may mean one thing at the edge and another in the core.
    """

    contexts: tuple[Label, ...] = Field(max_length=_MOST_CONTEXTS)
    metrics: dict[Label, tuple[Number, Annotated[float, Field(gt=0, le=1e12)]]] = Field(max_length=MOST_FEATURES)
    """Mean and standard deviation, by name."""
    actions: dict[Label, ActionModel] = Field(max_length=1000)

    @model_validator(mode="after")
    def _as_many_weights_as_features(self) -> Self:
        wanted = 3 + len(self.contexts) + len(self.metrics) * (1 + len(self.contexts))
        for name, action in self.actions.items():
            if len(action.weights) != wanted:
                raise ValueError(f"the action {name!r} has {len(action.weights)} weights for {wanted} features")
        return self

    def features(self, symptom: Symptom, context: str, metrics: Mapping[str, float]) -> list[float]:
        """The feature vector; a missing metric counts as its mean."""
        excess = abs(symptom.value - symptom.limit) / max(abs(symptom.limit), 1e-9)
        found = [1.0, float(symptom.severity == "critical"), min(math.log1p(excess), _FURTHEST)]
        here = [float(context == each) for each in self.contexts]
        values = [
            min(max((metrics.get(name, mean) - mean) / deviation, -_FURTHEST), _FURTHEST)
            for name, (mean, deviation) in self.metrics.items()
        ]
        return [*found, *here, *values, *(inside * value for inside in here for value in values)]


class Policy(_Part):
    """The policy file. Rules that it does not contain use their own order."""

    format: Literal["parlmesh-mapek-policy"] = "parlmesh-mapek-policy"
    version: Literal[1] = 1
    decisions: int = Field(ge=0)
    """Number of decisions it was trained on."""
    rules: dict[Label, RuleModel] = Field(max_length=1000)

    @property
    def digest(self) -> str:
        """Identifies the training result."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def save(self, path: Path) -> None:
        """Writes the file atomically."""
        partial = path.with_name(f"{path.name}.partial")
        try:
            partial.write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n")
            partial.replace(path)
        except OSError as error:
            raise FailedPrecondition(f"{path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """The policy in a file; raises InvalidInput for anything else."""
        try:
            with path.open("rb") as file:
                text = file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise InvalidInput(f"the policy {path} cannot be read: {error.strerror}") from None
        if len(text) > LARGEST_BYTES:
            raise InvalidInput(f"the policy {path} is larger than {LARGEST_BYTES} bytes")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])[:200]
            raise InvalidInput(f"{path} is not a policy: {where + ': ' if where else ''}{first['msg']}"[:500]) from None


def trained(decisions: Sequence[Decision]) -> Policy:
    """A policy trained on decisions with an outcome; dry runs and unknown outcomes are ignored."""
    ended = [each for each in decisions if each.status in (Status.WORKED, Status.FAILED, Status.ROLLED_BACK)]
    if not ended:
        raise FailedPrecondition("there is nothing to learn from: no action of this knowledge has ended yet")
    by_rule: dict[str, list[Decision]] = {}
    for each in ended:
        by_rule.setdefault(each.rule, []).append(each)
    return Policy(decisions=len(ended), rules={rule: _rule(found) for rule, found in sorted(by_rule.items())})


def _rule(decisions: list[Decision]) -> RuleModel:
    contexts = sorted({each.context for each in decisions if each.context})[:_MOST_CONTEXTS]
    most = (MOST_FEATURES - 3 - len(contexts)) // (1 + len(contexts))
    empty = RuleModel(contexts=tuple(contexts), metrics=_scales(decisions, most), actions={})
    seconds = [each.seconds for each in decisions if each.status is Status.WORKED]
    usual = float(np.mean(seconds)) if seconds else 30.0
    actions = {}
    for name in sorted({each.action for each in decisions}):
        tried = [each for each in decisions if each.action == name]
        rows = np.array([empty.features(each.symptom, each.context, _seen(each)) for each in tried])
        worked = np.array([float(each.status is Status.WORKED) for each in tried])
        own = [each.seconds for each in tried if each.status is Status.WORKED]
        mean = (sum(own) + usual) / (len(own) + 1)
        actions[name] = ActionModel(
            weights=tuple(_regression(rows, worked).tolist()), seconds=min(max(mean, 1e-3), 1e6), tries=len(tried)
        )
    return empty.model_copy(update={"actions": actions})


def _scales(decisions: list[Decision], most: int) -> dict[str, tuple[float, float]]:
    counts: dict[str, list[float]] = {}
    for each in decisions:
        for name, value in _seen(each).items():
            counts.setdefault(name, []).append(value)
    found = {}
    for name in sorted(counts):
        values = np.array(counts[name])
        deviation = float(values.std())
        if len(values) >= _SHARE * len(decisions) and deviation > 1e-9 and abs(values).max() < 1e12:
            found[name] = (float(values.mean()), deviation)
    # Rules use few metrics; of too many, keep the first by name.
    return dict(list(found.items())[:most])


def _seen(decision: Decision) -> dict[str, float]:
    metrics = decision.inputs.get("metrics")
    if not isinstance(metrics, Mapping):
        return {}
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value) and len(name) <= 400}


def _regression(rows: Array, worked: Array) -> Array:
    """Maximum-likelihood weights. The ridge keeps every step solvable and avoids certainty from few tries."""
    ridge = np.full(rows.shape[1], _RIDGE)
    ridge[0] = _BIAS_RIDGE
    weights = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        chance = 1.0 / (1.0 + np.exp(-np.clip(rows @ weights, -30.0, 30.0)))
        slope = rows.T @ (worked - chance) - ridge * weights
        curve = (rows * (chance * (1.0 - chance))[:, None]).T @ rows + np.diag(ridge)
        step = np.linalg.solve(curve, slope)
        weights = weights + step
        if float(np.abs(step).max()) < 1e-9:
            break
    return weights
