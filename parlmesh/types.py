"""What travels between the parts: plain frozen dataclasses over numpy. Knows nothing of gRPC or torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

OBSERVATION, ACTION, LOG_PROB, REWARD = "observation", "action", "log_prob", "reward"
TERMINATED, TRUNCATED, VALID = "terminated", "truncated", "valid"
ACTION_MASK, STATE = "action_mask", "state"


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    total_reward: float
    steps: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """T steps of E environments, by column: observation and action_mask [T+1, E, ...], state [E, ...] before the first
    step, all others [T, E, ...]. Only masked environments have a mask, only recurrent policies a state.

    Row t+1 of the observations follows step t, also when the episode ended there; the step after an end only
    resets the environment and has `valid` false.
    """

    columns: Mapping[str, Array]
    episodes: Sequence[Episode]

    @property
    def valid_steps(self) -> int:
        """Environment steps, resets left out."""
        return int(np.count_nonzero(self.columns[VALID]))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A fragment with its origin. (actor_id, incarnation, sequence) is counted once."""

    run_id: str
    actor_id: str
    incarnation: int
    sequence: int
    policy_version: int
    fragment: Fragment
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What can be chosen: one of `sizes[0]`, one of each of several `sizes`, or a vector between `low` and `high`."""

    kind: Literal["discrete", "multi_discrete", "continuous"]
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one action."""
        return () if self.kind == "discrete" else (len(self.sizes) or len(self.low),)

    @property
    def dtype(self) -> str:
        """Of the action column."""
        return "float32" if self.kind == "continuous" else "int64"

    @property
    def outputs(self) -> int:
        """Numbers a network must give: a logit per choice, or a mean per dimension."""
        return len(self.low) if self.kind == "continuous" else sum(self.sizes)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Shapes of an environment, all that a learner needs to know of it.

    `observation_states` > 0 means that an observation is one of so many states rather than an array. `masked` means
    that every observation comes with the mask of the actions allowed in it.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    observation_states: int = 0
    masked: bool = False


@dataclass(frozen=True, slots=True)
class PolicyBlob:
    """One immutable version of a policy, serialised."""

    run_id: str
    version: int
    digest: bytes
    data: bytes
