"""The types that travel between the parts: frozen dataclasses over numpy arrays, without gRPC or torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

OBSERVATION, ACTION, LOG_PROB, REWARD = "observation", "action", "log_prob", "reward"
TERMINATED, TRUNCATED, VALID = "terminated", "truncated", "valid"
ACTION_MASK, STATE = "action_mask", "state"
# The improved policy that search found: some actions and the probability of each.
TARGET_ACTION, TARGET_CHANCE = "target_action", "target_chance"
EARNED = "earned"
# Columns without a time axis: one value per environment, from before the first step.
BEFORE = (STATE, EARNED)
# Search gives a probability to only a few of thousands of moves.
_MOST_TARGETS = 64


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    total_reward: float
    steps: int


class EpisodeColumns(Sequence[Episode]):
    """Episodes as an array of returns and an array of lengths; `Episode` objects are made only on access."""

    __slots__ = ("returns", "steps")

    def __init__(self, returns: Array, steps: Array) -> None:
        self.returns = returns
        self.steps = steps

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "EpisodeColumns":
        """Converts episodes to columns."""
        if isinstance(episodes, cls):
            return episodes
        returns = np.array([each.total_reward for each in episodes], np.float32)
        return cls(returns, np.array([each.steps for each in episodes], np.int64))

    def __len__(self) -> int:
        return len(self.returns)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> "EpisodeColumns": ...

    def __getitem__(self, index: int | slice) -> "Episode | EpisodeColumns":
        if isinstance(index, slice):
            return EpisodeColumns(self.returns[index], self.steps[index])
        return Episode(float(self.returns[index]), int(self.steps[index]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Fragment:
    """T steps of E environments, by column: observation and action_mask [T+1, E, ...], state [E, ...] and earned [E]
    before the first step, all others [T, E, ...]. Only masked environments have a mask, and only recurrent policies
    have a state. `earned`, the discounted rewards of the running episodes, is present when a trainer normalises
    rewards; target_action and target_chance [T, E, K] are present when the policy searched.

    Row t+1 of the observations follows step t, even when the episode ended there. The step after an end only resets the
    environment, and its `valid` is false.
    """

    columns: Mapping[str, Array]
    episodes: Sequence[Episode]

    @property
    def valid_steps(self) -> int:
        """Number of environment steps, not counting resets."""
        return int(np.count_nonzero(self.columns[VALID]))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A fragment with its origin. Each (actor_id, incarnation, sequence) is counted once."""

    run_id: str
    actor_id: str
    incarnation: int
    sequence: int
    policy_version: int
    fragment: Fragment
    task_id: str = ""
    collect_time: float = 0.0
    """Unix time of the last step; 0 = unknown."""
    collect_seconds: float = 0.0
    waited_seconds: float = 0.0
    """How long the slot waited before it started to collect."""
    run_uid: str = ""
    """Uid of the run whose policy acted; empty = unknown."""
    node_id: str = ""
    """Authenticated node that sent it; empty in a fleet without identities."""

    @property
    def sender(self) -> str:
        """Name of the sender in messages: the node if it is authenticated, else the actor."""
        return self.node_id or self.actor_id


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """An action space: one of `sizes[0]` choices, one choice per entry of `sizes`, or a vector from `low` to `high`."""

    kind: Literal["discrete", "multi_discrete", "continuous"]
    sizes: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one action."""
        return () if self.kind == "discrete" else (len(self.sizes) or len(self.low),)

    @property
    def dtype(self) -> str:
        """Type of the action column."""
        return "float32" if self.kind == "continuous" else "int64"

    @property
    def outputs(self) -> int:
        """Number of network outputs: a logit per choice, or a mean per dimension."""
        return len(self.low) if self.kind == "continuous" else sum(self.sizes)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Shapes of an environment: everything a learner needs to know about it.

    `observation_states` > 0 means that an observation is one of that many states rather than an array. `masked` means
    that every observation comes with a mask of allowed actions, and `opposed` that it is a game that needs an opponent.
    """

    observation_shape: tuple[int, ...]
    observation_dtype: str
    action: ActionSpec
    observation_states: int = 0
    masked: bool = False
    opposed: bool = False


@dataclass(frozen=True, slots=True)
class Search:
    """How far players look ahead before they move."""

    simulations: int
    """Positions evaluated per move."""
    considered: int = 16
    """Most moves tried at the root of a search."""
    value_scale: float = 0.1
    """Weight of a position's value against the network's own prior."""


def target_width(choices: int) -> int:
    """Number of moves that an improved policy gives a probability for."""
    return min(choices, _MOST_TARGETS)


@dataclass(frozen=True, slots=True)
class PolicyBlob:
    """One immutable version of a policy, serialised."""

    run_id: str
    version: int
    digest: bytes
    data: bytes
    run_uid: str = ""
    """Distinguishes the run from other runs with the same id; empty = unknown."""
