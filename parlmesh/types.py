"""What travels between the parts: plain frozen dataclasses over numpy. Knows nothing of gRPC or torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

OBSERVATION, ACTION, LOG_PROB, REWARD = "observation", "action", "log_prob", "reward"
TERMINATED, TRUNCATED, VALID = "terminated", "truncated", "valid"


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    total_reward: float
    steps: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """T steps of E environments, by column: observation [T+1, E, ...], all others [T, E, ...].

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
class EnvironmentSpec:
    """Shapes of an environment, all that a learner needs to know of it."""

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action_count: int


@dataclass(frozen=True, slots=True)
class PolicyBlob:
    """One immutable version of a policy, serialised."""

    run_id: str
    version: int
    digest: bytes
    data: bytes
