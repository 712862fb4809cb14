"""A run's files: metrics.jsonl, TensorBoard events, the best policy, the learning curve, a summary."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from .curve import draw_learning_curve
from .progress import Progress, RunState
from .tracking import NoTracker, Tracker

METRICS_FILE = "metrics.jsonl"


class Recorder:
    """`record` runs on the event loop and is cheap; `finish` draws and belongs in a thread."""

    def __init__(
        self, run_dir: Path, run_id: str, title: str, goal: float | None, tracker: Tracker | None = None
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._dir = run_dir
        self._run_id = run_id
        self._title = title
        self._goal = goal
        self._tracker = tracker or NoTracker()
        self._metrics: TextIO = _appending(run_dir / METRICS_FILE)
        self._events = EventFileWriter(str(run_dir / "tensorboard"))

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """One line and one event."""
        now = time.time()
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self._metrics.write(json.dumps({"time": round(now, 3), "step": step, **rounded}) + "\n")
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._events.add_event(Event(wall_time=now, step=step, summary=summary))
        self._tracker.record(step, values)

    def save_policy(self, blob: bytes) -> None:
        """The best policy so far, ready for use."""
        partial = self._dir / ".policy.partial"
        partial.write_bytes(blob)
        partial.rename(self._dir / "policy.safetensors")

    def finish(self, progress: Progress, state: RunState, reason: str, digest: str, dropped: Mapping[str, int]) -> None:
        """The summary and the picture."""
        self._metrics.flush()
        self._events.flush()
        seconds = progress.elapsed_seconds
        summary: dict[str, Any] = {
            "run_id": self._run_id,
            "state": state.value,
            "reason": reason,
            "steps": progress.steps,
            "seconds": round(seconds, 3),
            "steps_per_second": round(progress.steps / seconds, 1) if seconds > 0 else 0.0,
            "episodes": progress.episodes,
            "policy_version": progress.version,
            "policy_digest": digest,
            "evaluation_return": progress.evaluation_return,
            "best_evaluation_return": progress.best_evaluation_return,
            "best_version": progress.best_version,
            "max_policy_lag_seen": progress.max_policy_lag_seen,
            "dropped_trajectories": dict(dropped),
        }
        (self._dir / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        draw_learning_curve(self._dir / METRICS_FILE, self._dir / "learning-curve.png", self._title, self._goal)

    def close(self) -> None:
        """Flushes and frees the files."""
        self._metrics.close()
        self._events.close()
        self._tracker.close()


def _appending(path: Path) -> TextIO:
    """Open for whole lines; one that a crash cut off is ended first."""
    cut_off = False
    if path.exists() and path.stat().st_size:
        with path.open("rb") as before:
            before.seek(-1, os.SEEK_END)
            cut_off = before.read() != b"\n"
    file = path.open("a", buffering=1)
    if cut_off:
        file.write("\n")
    return file
