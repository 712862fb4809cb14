"""The description of a policy from which both sides build it."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from parlmesh.errors import InvalidInput

ACTIVATIONS = ("tanh", "relu")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A multilayer perceptron over a flattened observation that chooses one of `action_count` actions."""

    observation_shape: tuple[int, ...]
    action_count: int
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    kind: str = "mlp"

    def __post_init__(self) -> None:
        if self.kind != "mlp":
            raise InvalidInput(f"policy kind must be mlp, got {self.kind!r}", reason="POLICY_SPEC")
        if self.activation not in ACTIVATIONS:
            raise InvalidInput(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.action_count < 2:
            raise InvalidInput(f"action_count must be >= 2, got {self.action_count}", reason="POLICY_SPEC")
        if any(size < 1 for size in self.observation_shape + self.hidden):
            raise InvalidInput(f"layer sizes must be >= 1, got {self.observation_shape} and {self.hidden}")

    @property
    def observation_size(self) -> int:
        """Length of the flattened observation."""
        size = 1
        for dimension in self.observation_shape:
            size *= dimension
        return size

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Inputs, hidden layers, outputs of the policy head."""
        return (self.observation_size, *self.hidden, self.action_count)

    def to_json(self) -> str:
        """Stable text: equal specifications give equal text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "PolicySpec":
        """Refuses text that is not a specification with InvalidInput."""
        try:
            values: dict[str, Any] = json.loads(text)
            return cls(
                observation_shape=tuple(int(size) for size in values["observation_shape"]),
                action_count=int(values["action_count"]),
                hidden=tuple(int(size) for size in values["hidden"]),
                activation=str(values["activation"]),
                kind=str(values["kind"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"policy specification cannot be read: {error!r}", reason="POLICY_SPEC") from error
