"""Learning tasks: what a federation trains. An operator installs them by name; code never travels.

A task is made from its settings, `make(settings) -> LearningTask`, on the learner for the first model and on every
node for its part of the work. The built-in ones are named here; others come as "module:attribute" in the configuration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from parlmesh.config import load_source
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.types import Array


@dataclass(frozen=True, slots=True)
class FirstModel:
    """Version 1: tensors, the rules of those that are not simply joined, and what a reader of the file is told."""

    tensors: Mapping[str, Array]
    rules: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A node's part in a round. `number` is 1 for the first node of a federation and stays with the node.

    `check` raises when nobody waits for the result any more; long work calls it now and then.
    """

    node_id: str
    number: int
    round: int
    seed: int
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model, what it was trained on, and numbers for the history."""

    tensors: Mapping[str, Array]
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """How good a model is on data of the node that it does not train on."""

    samples: int
    metrics: Mapping[str, float]


@runtime_checkable
class LearningTask(Protocol):
    """Model, data and local training. The same part of the same model must give the same result."""

    def first(self, seed: int) -> FirstModel:
        """The model before the first round."""
        ...

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Trains a copy of the model on the node's own data."""
        ...

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Judged:
        """Judges the model on the node's own data."""
        ...


TaskMaker: TypeAlias = Callable[[Mapping[str, Any]], LearningTask]

BUILT_IN: Mapping[str, str] = {
    "digits": "parlmesh.federation.tasks.digits:Digits",
    "drift": "parlmesh.federation.tasks.drift:Drift",
    "ppo": "parlmesh.federation.tasks.ppo:LocalPpo",
    "synthetic": "parlmesh.federation.tasks.synthetic:Synthetic",
}


def make_task(name: str, settings: Mapping[str, Any], installed: Mapping[str, str]) -> LearningTask:
    """The task of that name; InvalidInput when there is none or it refuses its settings."""
    sources = {**BUILT_IN, **installed}
    if name not in sources:
        known = ", ".join(sorted(sources))
        raise InvalidInput(f"learning task {name!r} is not installed here; there are {known}", reason="UNKNOWN_TASK")
    maker: TaskMaker = load_source(f"learning task {name!r}", sources[name])
    task = maker(settings)
    if not isinstance(task, LearningTask):
        raise ConfigError(f"learning task {name!r} needs first, fit and evaluate")
    return task
