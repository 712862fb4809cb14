"""Formats numbers, times and states for the pages. Pure."""

import time
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1 import training_service_pb2 as training_pb

NONE = "–"


def number(value: float | None, digits: int = 0) -> str:
    """Formats a number; a dash for None."""
    return NONE if value is None else f"{value:,.{digits}f}"


def rate(value: float) -> str:
    """Formats a rate, with one decimal while it is small."""
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def percent(value: float) -> str:
    return f"{value:.0%}".replace("%", " %")


def seconds(value: float) -> str:
    """Formats a duration with a suitable unit."""
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    if value < 7_200:
        return f"{value / 60:.0f} min"
    return f"{value / 3_600:.1f} h" if value < 172_800 else f"{value / 86_400:.0f} days"


def size(count: float) -> str:
    """Formats bytes with a unit."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1_024:
            return f"{count:,.0f} {unit}"
        count /= 1_024
    return f"{count:,.1f} GiB"


def span(duration: Duration) -> str:
    return seconds(duration.seconds + duration.nanos / 1e9)


def moment(stamp: Timestamp) -> float:
    """Seconds since 1970; 0 when unset."""
    return stamp.seconds + stamp.nanos / 1e9


def ago(stamp: Timestamp, now: float) -> str:
    """How long ago; a dash when unset."""
    if not stamp.seconds:
        return NONE
    age = now - moment(stamp)
    return f"{seconds(age)} ago" if age >= 1 else "now"


def clock(at: float) -> str:
    """Date and time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) if at else NONE


def counted(count: int, one: str, many: str = "") -> str:
    """ "1 task", "2,000 tasks"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def actor_state(state: pb.ActorState.ValueType) -> str:
    return _word(pb.ActorState.Name(state), "ACTOR_STATE_") if state in pb.ActorState.values() else f"state {state}"


def task_state(state: task_pb2.TaskState.ValueType) -> str:
    return _word(task_pb2.TaskState.Name(state), "TASK_STATE_") if state in task_pb2.TaskState.values() else str(state)


def priority(value: task_pb2.Priority.ValueType) -> str:
    return _word(task_pb2.Priority.Name(value), "PRIORITY_") if value in task_pb2.Priority.values() else str(value)


def run_state(state: training_pb.TrainingState.ValueType) -> str:
    known = training_pb.TrainingState
    return _word(known.Name(state), "TRAINING_STATE_") if state in known.values() else str(state)


def federation_state(state: federation_pb.FederationState.ValueType) -> str:
    known = federation_pb.FederationState
    return _word(known.Name(state), "FEDERATION_STATE_") if state in known.values() else str(state)


def round_state(state: federation_pb.RoundState.ValueType) -> str:
    known = federation_pb.RoundState
    return _word(known.Name(state), "ROUND_STATE_") if state in known.values() else str(state)


def tone(state: str) -> str:
    """The colour of a state, one of four; the word is always shown beside it."""
    if state in {"ready", "running", "succeeded", "finished", "aggregated", "collecting", "healthy", "worked"}:
        return "good"
    if state in {"lost", "failed", "quarantined", "abandoned", "sick"}:
        return "bad"
    if state in {"paused", "draining", "cancelled", "stopped", "retried", "rolled_back", "unknown"}:
        return "warn"
    return "plain"


def polyline(values: Sequence[float], width: float = 100.0, height: float = 20.0) -> str:
    """The points of a small curve from the left edge to the right, 0 at the bottom."""
    if len(values) < 2:
        return ""
    top = max(max(values), 1e-9)
    step = width / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{height - 1 - value / top * (height - 2):.1f}" for index, value in enumerate(values)
    )


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
