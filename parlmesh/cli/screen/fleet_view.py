"""The current state of a fleet, and how its figures are written. Does no I/O and draws no tables."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from parlmesh.v1.scheduler_service_pb2 import ACTOR_STATE_LOST, ACTOR_STATE_READY, Actor, GetStatisticsResponse
from parlmesh.v1.training_service_pb2 import (
    TRAINING_STATE_FAILED,
    TRAINING_STATE_FINISHED,
    TRAINING_STATE_STOPPED,
    Training,
    TrainingState,
)

FINAL_STATES = frozenset({TRAINING_STATE_FINISHED, TRAINING_STATE_STOPPED, TRAINING_STATE_FAILED})
CURVE_POINTS = 22


def _no_restarts() -> int:
    return 0


@dataclass
class FleetView:
    """The newest answers of learner and scheduler; the feed replaces them as a whole."""

    run_id: str
    serial: bool = False
    training: Training | None = None
    statistics: GetStatisticsResponse | None = None
    actors: tuple[Actor, ...] = ()
    expected_actors: int = 0
    """Number of actors that were started; 0 = those the scheduler knows."""
    restarts: Callable[[], int] = _no_restarts
    supervised: bool = False
    """Whether restarts are known."""
    phase: str = "starting"
    """The fleet's activity until the learner answers."""
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=4))
    returns: deque[float] = field(default_factory=lambda: deque(maxlen=256))

    page: str = ""
    """Address of the web page; empty = none."""
    told: int = 0
    """Number of notes so far, including forgotten ones."""

    def note(self, text: str) -> None:
        """Adds a note; only the last few are shown."""
        self.notes.append(text)
        self.told += 1

    def learn(self, training: Training) -> None:
        """Takes the learner's newest answer."""
        previous = self.training.progress if self.training is not None else None
        known = set(self.training.notes) if self.training is not None else set()
        for note in training.notes:
            if note not in known:
                self.note(note)
        self.training = training
        progress = training.progress
        moved = previous is None or progress.steps != previous.steps
        if moved and progress.HasField("episode_return"):
            self.returns.append(progress.episode_return)

    @property
    def state(self) -> str:
        """One word for the header."""
        return state_name(self.training.state) if self.training is not None else self.phase

    @property
    def ended(self) -> bool:
        """Whether the run has ended."""
        return self.training is not None and self.training.state in FINAL_STATES

    @property
    def ready_actors(self) -> int:
        """Actors that take tasks now."""
        return sum(1 for actor in self.actors if actor.state == ACTOR_STATE_READY)

    @property
    def total_actors(self) -> int:
        """Actors that should be ready."""
        return self.expected_actors or sum(1 for actor in self.actors if actor.state != ACTOR_STATE_LOST)


def state_name(state: TrainingState.ValueType) -> str:
    """TRAINING_STATE_RUNNING as "running"."""
    return TrainingState.Name(state).removeprefix("TRAINING_STATE_").lower()


def number(value: float | None, digits: int = 1) -> str:
    """Formats a number; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def counted(count: int | None, one: str, many: str = "") -> str:
    """ "1 task", "2,000 tasks", "– tasks"."""
    return f"{number(count, 0)} {one if count == 1 else many or one + 's'}"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def goal_text(training: Training) -> str:
    """Evaluation against goal."""
    progress = training.progress
    evaluation = number(progress.evaluation_return if progress.HasField("evaluation_return") else None)
    return f"{evaluation} / goal {progress.goal_return:g}" if progress.HasField("goal_return") else evaluation


def differing_text(training: Training) -> str:
    """Compares returns if training, which samples actions, earns far more than evaluations do; else empty."""
    progress = training.progress
    if not (progress.HasField("episode_return") and progress.HasField("evaluation_return")):
        return ""
    drawn, judged = progress.episode_return, progress.evaluation_return
    if drawn - judged <= 0.5 * max(abs(drawn), abs(judged)):
        return ""
    text = f"{number(drawn, 2)} by the sampled actions of training, {number(judged, 2)} in evaluations"
    settings = training.configuration.fields
    sampled = "evaluation_play" in settings and settings["evaluation_play"].string_value == "sampled"
    return text if sampled else f"{text}; training.evaluation_play: sampled would sample there too"


def waiting_text(training: Training) -> str:
    """How much learner and actors wait, as shares of the last seconds."""
    progress = training.progress
    return f"learner {progress.learner_idle_ratio:.0%}  ·  actors {progress.actor_idle_ratio:.0%}"


def failures_text(training: Training) -> str:
    """How many rollouts and evaluations failed, and the last failure; empty if none failed."""
    progress = training.progress
    counts = ((progress.failed_rollouts, "rollout"), (progress.failed_evaluations, "evaluation"))
    told = ", ".join(counted(count, what) for count, what in counts if count)
    # Only the first line; the summary shows the rest with the traceback.
    last = progress.last_failure.partition("\n")[0]
    return f"{told}; the last one: {last}" if told and last else told


def sparkline(values: list[float], points: int = CURVE_POINTS) -> str:
    """The values as block characters, averaged down to at most `points`."""
    if len(values) < 2:
        return ""
    count = min(points, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    blocks = "▁▂▃▄▅▆▇█"
    if high == low:
        return blocks[0] * count
    return "".join(blocks[round((mean - low) / (high - low) * (len(blocks) - 1))] for mean in means)
