"""The specification from which learner and actors build a policy."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from parlmesh.errors import InvalidInput
from parlmesh.types import ActionSpec, EnvironmentSpec

from .convolutions import CONVOLUTIONS, flat_size
from .custom_networks import network_names

ACTIVATIONS = ("tanh", "relu")
CHOICES = ("sample", "epsilon_greedy", "squashed", "noisy")
ACTIONS = ("squashed", "clipped")
# Fields that the first release does not know, and their meaning when absent.
_NEWER = {"actions": "squashed"}


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A network from observations to the numbers that choose an action.

    mlp and recurrent (a GRU as the last hidden layer) read the flattened observation, convolutional networks read
    images [C, H, W], tabular has a row per state; plug-ins add others. `choice` says how the numbers are used: sample
    draws from the distribution they describe, epsilon_greedy treats them as action values, which `dueling` splits into
    a state's value and advantages. `actions` says how continuous actions are kept within their bounds; those of
    squashed (a Gaussian with means and deviations) and noisy are in −1..1 and are scaled.
    """

    observation_shape: tuple[int, ...]
    action: ActionSpec
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    network: str = "mlp"
    observation_states: int = 0
    masked: bool = False
    normalised: bool = False
    choice: Literal["sample", "epsilon_greedy", "squashed", "noisy"] = "sample"
    dueling: bool = False
    actions: Literal["squashed", "clipped"] = "squashed"

    def __post_init__(self) -> None:
        _among("network", self.network, network_names())
        _among("activation", self.activation, ACTIVATIONS)
        _among("choice", self.choice, CHOICES)
        _among("actions", self.actions, ACTIONS)
        _check_action(self.action)
        if any(size < 1 for size in self.observation_shape + self.hidden):
            raise _refusal(f"layer sizes must be >= 1, got {self.observation_shape} and {self.hidden}")
        if self.network in ("recurrent", *CONVOLUTIONS) and not self.hidden:
            raise _refusal(f"a {self.network} network needs at least one hidden layer")
        if self.network in CONVOLUTIONS:
            self._check_image()
        if self.observation_states and self.normalised:
            raise _refusal("states are not normalised; normalised must be false")
        if self.masked and self.action.kind == "continuous":
            raise _refusal("a continuous action cannot be masked")
        self._check_values()

    def _check_image(self) -> None:
        if len(self.observation_shape) != 3:
            shape = list(self.observation_shape)
            raise _refusal(f"a {self.network} network needs observations [C, H, W], got {shape}")
        if self.normalised:
            raise _refusal(f"a {self.network} network takes images as they are; normalised must be false")
        if not flat_size(self.network, self.observation_shape):
            shape = list(self.observation_shape)
            raise _refusal(f"a {self.network} network needs larger images than {shape}; conv takes any")

    def _check_values(self) -> None:
        if self.choice == "epsilon_greedy" and self.action.kind != "discrete":
            raise _refusal(f"values can be learnt only for discrete actions, got {self.action.kind}")
        if self.bounded and (self.action.kind != "continuous" or self.network != "mlp"):
            kind, network = self.action.kind, self.network
            raise _refusal(f"{self.choice} needs continuous actions and an mlp, got {kind} and {network}")
        if self.dueling and (self.choice != "epsilon_greedy" or self.network == "tabular"):
            raise _refusal("only networks whose choice is epsilon_greedy can be dueling")
        if self.network == "tabular" and (not self.observation_states or self.hidden):
            states, hidden = self.observation_states, list(self.hidden)
            raise _refusal(f"a table needs states and has no hidden layers, got {states} states and hidden {hidden}")

    @classmethod
    def for_environment(cls, environment: EnvironmentSpec, **settings: Any) -> "PolicySpec":
        """The specification with the given settings that fits an environment."""
        return cls(
            observation_shape=environment.observation_shape,
            observation_states=environment.observation_states,
            action=environment.action,
            masked=environment.masked,
            **settings,
        )

    @property
    def observation_size(self) -> int:
        """Length of the flattened observation; a state becomes a one-hot row."""
        return self.observation_states or math.prod(self.observation_shape)

    @property
    def bounded(self) -> bool:
        """Whether actions are in −1..1 and are scaled to the environment's bounds."""
        return self.choice in ("squashed", "noisy")

    @property
    def outputs(self) -> int:
        """Number of outputs of the policy head; a dueling head has the state's value last."""
        return self.action.outputs * (2 if self.choice == "squashed" else 1) + self.dueling

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """Inputs, hidden layers, outputs of the policy head."""
        return (self.observation_size, *self.hidden, self.outputs)

    @property
    def state_size(self) -> int:
        """Length of the recurrent state; 0 when the policy has no memory."""
        return self.hidden[-1] if self.network == "recurrent" else 0

    def to_json(self) -> str:
        """Stable text: equal specifications give equal text, and older actors can read it if it uses no newer field."""
        values = asdict(self)
        for name, default in _NEWER.items():
            if values[name] == default:
                del values[name]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "PolicySpec":
        """The inverse of `to_json`; raises InvalidInput for any other text."""
        try:
            values: dict[str, Any] = json.loads(text)
            action = {name: _tuple(value) for name, value in values.pop("action").items()}
            return cls(action=ActionSpec(**action), **{name: _tuple(value) for name, value in values.items()})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _refusal(f"policy specification cannot be read: {error!r}") from error


def _check_action(action: ActionSpec) -> None:
    _among("action kind", action.kind, ("discrete", "multi_discrete", "continuous"))
    if action.kind == "continuous":
        if not action.low or len(action.low) != len(action.high):
            raise _refusal("a continuous action needs as many lower as upper bounds, at least one")
        bounds = list(zip(action.low, action.high, strict=True))
        if not all(math.isfinite(low) and math.isfinite(high) and low < high for low, high in bounds):
            raise _refusal(f"bounds of a continuous action must be finite and in order, got {bounds}")
        return
    if action.kind == "discrete" and len(action.sizes) != 1:
        raise _refusal(f"a discrete action has one size, got {action.sizes}")
    if not action.sizes or any(size < 2 for size in action.sizes):
        raise _refusal(f"an action needs at least 2 choices, got {action.sizes}")


def _among(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise _refusal(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _refusal(message: str) -> InvalidInput:
    return InvalidInput(message, reason="POLICY_SPEC")
