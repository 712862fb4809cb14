"""Ages and durations in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp


def seconds_of(duration: "Duration") -> str:
    """A duration in ms or s."""
    seconds = duration.seconds + duration.nanos / 1e9
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def age_of(moment: "Timestamp", now_seconds: float) -> str:
    """How long ago in words; a dash when unset."""
    if not moment.seconds:
        return "–"
    age = max(0.0, now_seconds - (moment.seconds + moment.nanos / 1e9))
    if age < 60:
        return f"{age:.1f} s ago"
    return f"{age / 60:.0f} min ago" if age < 3_600 else f"{age / 3_600:.1f} h ago"
