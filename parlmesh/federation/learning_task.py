"""Learning tasks, which a federation trains. Operators install them by name; code is never sent.

A task is made from its settings, `make(settings) -> LearningTask`, on the learner for the first model and on every node
for its part of the work. Built-in tasks are listed here; the configuration names others as "module:attribute".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from parlmesh.config import load_source
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.types import Array


@dataclass(frozen=True, slots=True)
class FirstModel:
    """Version 1: tensors, rules for tensors that are not averaged by default, and metadata for the file."""

    tensors: Mapping[str, Array]
    rules: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A node's part in a round. `number` is 1 for the first node of a federation and never changes for a node.

    `check` raises when the result is no longer wanted; long computations should call it regularly.
    """

    node_id: str
    number: int
    round: int
    seed: int
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained model, its number of samples, and metrics for the history."""

    tensors: Mapping[str, Array]
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A model's metrics on the node's held-out data."""

    samples: int
    metrics: Mapping[str, float]


@runtime_checkable
class LearningTask(Protocol):
    """Model, data and local training. Must be deterministic: the same model and part give the same result."""

    def first(self, seed: int) -> FirstModel:
        """The model before the first round."""
        ...

    def fit(self, tensors: Mapping[str, Array], part: Part) -> Fitted:
        """Trains a copy of the model on the node's own data."""
        ...

    def evaluate(self, tensors: Mapping[str, Array], part: Part) -> Evaluated:
        """Evaluates the model on the node's own data."""
        ...


TaskMaker: TypeAlias = Callable[[Mapping[str, Any]], LearningTask]

BUILT_IN: Mapping[str, str] = {
    "digits": "parlmesh.federation.tasks.digits:Digits",
    "drift": "parlmesh.federation.tasks.drift:Drift",
    "ppo": "parlmesh.federation.tasks.ppo:LocalPpo",
    "synthetic": "parlmesh.federation.tasks.synthetic:Synthetic",
}


def make_task(name: str, settings: Mapping[str, Any], installed: Mapping[str, str]) -> LearningTask:
    """The task of that name; raises InvalidInput when it is not installed or refuses its settings."""
    sources = {**BUILT_IN, **installed}
    if name not in sources:
        known = ", ".join(sorted(sources))
        raise InvalidInput(f"learning task {name!r} is not installed here; there are {known}", reason="UNKNOWN_TASK")
    maker: TaskMaker = load_source(f"learning task {name!r}", sources[name])
    task = maker(settings)
    if not isinstance(task, LearningTask):
        raise ConfigError(f"learning task {name!r} needs first, fit and evaluate")
    return task
