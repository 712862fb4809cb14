"""A run's files: metrics.jsonl, TensorBoard events, the best policy, the learning curve, a summary."""

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from parlmesh.durable_files import replace_file
from parlmesh.telemetry import get_logger

from ..runs.progress import Progress, RunState
from .curves import draw_learning_curve
from .tensorboard_events import EventFile
from .tensorboard_hparams import hparams_summary
from .weights_and_biases import NoTracker, Tracker

# A run that waits for the disk adds no lines, so few are ever unwritten.
_MOST_UNWRITTEN_BYTES = 4 << 20


class Lines:
    """Appends lines, which are written when `add` returns unless the disk refuses. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # If a crash cut off the last line, it is ended first.
        self.unwritten = b"\n" if _is_cut_off(path) else b""

    def add(self, line: str) -> None:
        """Never fails: lines that cannot be written wait in `unwritten`."""
        if len(self.unwritten) < _MOST_UNWRITTEN_BYTES:
            self.unwritten += line.encode() + b"\n"
        try:
            self.flush()
        except OSError:
            return

    def flush(self) -> None:
        """Writes the waiting lines; OSError if the disk refuses them, without losing any."""
        while self.unwritten:
            if self._descriptor is None:
                raise OSError(9, "the file is closed", str(self._path))
            try:
                written = os.write(self._descriptor, self.unwritten)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self._path)) from None
            self.unwritten = self.unwritten[written:]

    def close(self) -> None:
        """Closes the file; what still waits is lost."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _is_cut_off(path: Path) -> bool:
    if not path.stat().st_size:
        return False
    with path.open("rb") as before:
        before.seek(-1, os.SEEK_END)
        return before.read() != b"\n"


METRICS_FILE = "metrics.jsonl"
log = get_logger("parlmesh.learner")


class Recorder:
    """`record` runs on the event loop and is cheap; `finish` draws and belongs in a thread."""

    def __init__(
        self,
        run_dir: Path,
        run_id: str,
        title: str,
        goal: float | None,
        tracker: Tracker | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._dir = run_dir
        self._run_id = run_id
        self._title = title
        self._goal = goal
        self._tracker = tracker or NoTracker()
        self._metrics = Lines(run_dir / METRICS_FILE)
        try:
            self._events: EventFile | None = EventFile(run_dir / "tensorboard")
        except BaseException:
            self._metrics.close()
            raise
        if settings is not None:
            self._add_event(Event(wall_time=time.time(), step=0, summary=hparams_summary(settings, run_id)))

    @property
    def unwritten(self) -> bool:
        """Whether the disk has refused a line; `write` tries again."""
        return bool(self._metrics.unwritten)

    def write(self) -> None:
        """Writes the lines that the disk refused before; OSError if it still does."""
        self._metrics.flush()

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one line and one event. Values that are not finite are left out, because JSON cannot express them."""
        now = time.time()
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        rounded = {name: float(f"{value:.6g}") for name, value in values.items()}
        self._metrics.add(json.dumps({"time": round(now, 3), "step": step, **rounded}, allow_nan=False))
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
        self._add_event(Event(wall_time=now, step=step, summary=summary))
        self._tracker.record(step, values)

    def _add_event(self, event: Event) -> None:
        """After an error the file may end in half an event, so a new one takes the next."""
        try:
            if self._events is None:
                self._events = EventFile(self._dir / "tensorboard")
            self._events.add(event)
        except OSError as error:
            if self._events is not None:
                log.warning("tensorboard_failed", error=repr(error), advice="some of its points are lost")
                self._events.close()
            self._events = None

    def save_policy(self, blob: bytes) -> None:
        """Saves the best policy so far, ready for use."""
        replace_file(self._dir / "policy.safetensors", blob)

    def finish(self, progress: Progress, state: RunState, reason: str, digest: str, dropped: Mapping[str, int]) -> None:
        """Writes the summary and draws the learning curve."""
        self._metrics.flush()
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
            "failed_rollouts": progress.failed_rollouts,
            "failed_evaluations": progress.failed_evaluations,
            "last_failure": progress.last_failure,
        }
        told = json.dumps(finite(summary), indent=2, allow_nan=False) + "\n"
        replace_file(self._dir / "summary.json", told.encode())
        draw_learning_curve(self._dir / METRICS_FILE, self._dir / "learning-curve.png", self._title, self._goal)

    def close(self) -> None:
        """Closes the files."""
        self._metrics.close()
        if self._events is not None:
            self._events.close()
        self._tracker.close()


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with null for every number that is not finite."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}
