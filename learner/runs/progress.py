"""The progress of a run: its owner writes this, all others read it."""

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parlmesh.errors import FailedPrecondition

_WINDOW_SECONDS = 3.0
_LONGEST_WORDS, _LONGEST_TRACEBACK = 1_000, 10_000


class RunState(enum.Enum):
    """The last three are final."""

    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def final(self) -> bool:
        """Whether a run in this state has ended."""
        return self in (RunState.FINISHED, RunState.STOPPED, RunState.FAILED)


@dataclass(slots=True)
class Progress:
    """Numbers of a run; `update_accounting.py` counts them."""

    state: RunState = RunState.CREATED
    reason: str = ""
    steps: int = 0
    version: int = 0
    # Updates that were applied. Unlike versions, which skip some after a restart, they are the same in a resumed run.
    updates: int = 0
    episodes: int = 0
    bad_updates: int = 0
    elapsed_seconds: float = 0.0
    policy_lag: float = 0.0
    max_policy_lag_seen: int = 0
    evaluation_return: float | None = None
    best_evaluation_return: float | None = None
    best_version: int = 0
    evaluations: int = 0
    # Evaluations that reached the goal, without a miss between them.
    goals_in_a_row: int = 0
    # Version of the newest checkpoint on disk.
    checkpoint_version: int = 0
    # Steps at which the next evaluation is due; 0 before the run has started.
    next_evaluation: int = 0
    failed_rollouts: int = 0
    failed_evaluations: int = 0
    # One sentence on the last failure, and its traceback if there is one.
    last_failure: str = ""
    last_failure_traceback: str = ""
    # Steps of the longest episode that has ended.
    longest_episode: int = 0
    recent_returns: deque[float] = field(default_factory=lambda: deque(maxlen=100))

    def check_state(self, wanted: RunState, wish: str) -> None:
        """FailedPrecondition when the run is in another state."""
        if self.state is not wanted:
            raise FailedPrecondition(f"only a {wanted.value} run can be {wish}; this one is {self.state.value}")

    @property
    def episode_return(self) -> float | None:
        """Mean of the last 100 episodes."""
        return sum(self.recent_returns) / len(self.recent_returns) if self.recent_returns else None

    def note_failure(self, sentence: str, traceback: str = "") -> None:
        """Remembers the last failure. Its words come from outside, so they are cut to a limit."""
        self.last_failure, self.last_failure_traceback = sentence[:_LONGEST_WORDS], traceback[:_LONGEST_TRACEBACK]

    def counters(self) -> dict[str, Any]:
        """The part that a checkpoint keeps."""
        kept = {name: getattr(self, name) for name in _KEPT}
        return {**kept, "recent_returns": list(self.recent_returns)}

    def restore(self, counters: Mapping[str, Any]) -> None:
        """The inverse of `counters`."""
        for name in _KEPT:
            # Older learners kept fewer.
            if name in counters:
                setattr(self, name, counters[name])
        self.recent_returns.extend(counters["recent_returns"])


_KEPT = (
    "steps",
    "updates",
    "episodes",
    "elapsed_seconds",
    "policy_lag",
    "max_policy_lag_seen",
    "bad_updates",
    "evaluation_return",
    "best_evaluation_return",
    "best_version",
    "evaluations",
    "goals_in_a_row",
    "next_evaluation",
    "failed_rollouts",
    "failed_evaluations",
    "last_failure",
    "longest_episode",
)


class Rate:
    """Steps per second over the last seconds of training time."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def mark(self, now: float, steps: int) -> None:
        """Notes the total at a moment."""
        self._marks.append((now, steps))
        while len(self._marks) > 2 and now - self._marks[1][0] > _WINDOW_SECONDS:
            self._marks.popleft()

    def per_second(self) -> float:
        """0 before there are two marks."""
        if len(self._marks) < 2:
            return 0.0
        (first, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - first) if last > first else 0.0
