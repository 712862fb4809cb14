"""What travels between the parts: plain frozen dataclasses over numpy. Knows nothing of gRPC or torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

OBSERVATION, ACTION, LOG_PROB, REWARD = "observation", "action", "log_prob", "reward"
TERMINATED, TRUNCATED, VALID = "terminated", "truncated", "valid"
ACTION_MASK, STATE = "action_mask", "state"
# What search would rather do: some actions and the chance of each.
TARGET_ACTION, TARGET_CHANCE = "target_action", "target_chance"
EARNED = "earned"
# Columns without a time axis: what was before the first step, by environment.
BEFORE = (STATE, EARNED)
# Of thousands of moves, those that search leaves a chance to are few.
_MOST_TARGETS = 64


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode."""

    total_reward: float
    steps: int


class EpisodeColumns(Sequence[Episode]):
    """Episodes as they travel: an array of returns and one of lengths, made into objects only when asked for."""

    __slots__ = ("returns", "steps")

    def __init__(self, returns: Array, steps: Array) -> None:
        self.returns = returns
        self.steps = steps

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "EpisodeColumns":
        """The columns of any episodes."""
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
    before the first step, all others [T, E, ...]. Only masked environments have a mask, only recurrent policies a
    state; earned, the discounted rewards of the running episodes, is there when a trainer normalises rewards, and
    target_action with target_chance [T, E, K] when the policy searched.

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
    collect_time: float = 0.0
    """Unix time of the last step; 0 = not known."""
    collect_seconds: float = 0.0
    waited_seconds: float = 0.0
    """How long the slot had waited before."""
    run_uid: str = ""
    """Uid of the run whose policy acted; empty = not known."""
    node_id: str = ""
    """Who sent it, where that is proven; empty where anybody may send anything."""

    @property
    def sender(self) -> str:
        """Whom to name for it."""
        return self.node_id or self.actor_id


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """What can be chosen: one of `sizes[0]`, one of each of several `sizes`, or a vector between `low` and `high`."""

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
        """Numbers a network must give: a logit per choice, or a mean per dimension."""
        return len(self.low) if self.kind == "continuous" else sum(self.sizes)


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Shapes of an environment, all that a learner needs to know of it.

    `observation_states` > 0 means that an observation is one of that many states rather than an array. `masked` means
    that every observation comes with the mask of the actions allowed in it, `opposed` that it is a game whose other
    side somebody must take.
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
    """Positions that are judged for a move."""
    considered: int = 16
    """Most moves that are tried at all where a player is to move."""
    value_scale: float = 0.1
    """What a position's worth counts against the network's own inclination."""


def target_width(choices: int) -> int:
    """Moves of which an improved policy says how likely each is."""
    return min(choices, _MOST_TARGETS)


@dataclass(frozen=True, slots=True)
class PolicyBlob:
    """One immutable version of a policy, serialised."""

    run_id: str
    version: int
    digest: bytes
    data: bytes
    run_uid: str = ""
    """Tells the run from another under the same id; empty = not known."""
