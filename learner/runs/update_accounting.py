"""Counts an update: in the run's progress, its record and the metrics, with the time that learner and actors waited."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from parlmesh.telemetry import Waiting
from parlmesh.training.trainer import Update
from parlmesh.types import VALID, EpisodeColumns, Trajectory

from .. import metrics
from ..experience import ExperienceQueue
from ..files.recorder import Recorder
from .progress import Progress, Rate


class BatchFigures(NamedTuple):
    """The figures of a batch."""

    lags: list[int]
    """How many versions older than the trained one each trajectory's policy was."""
    returns: list[float]
    """Returns of the episodes that ended."""
    longest_episode: int
    step_seconds: float
    """Seconds per step of one environment where it was slowest."""
    spans: list[tuple[float, float]]
    """Seconds that each trajectory's slot waited, and then collected."""
    collect_times: list[float]
    """Unix times of last steps, where they are known."""

    @classmethod
    def of(cls, batch: Sequence[Trajectory], trained_version: int) -> "BatchFigures":
        """The figures of a batch that `trained_version` was trained on."""
        episodes = [EpisodeColumns.of(trajectory.fragment.episodes) for trajectory in batch]
        return cls(
            lags=[trained_version - trajectory.policy_version for trajectory in batch],
            returns=[value for each in episodes for value in each.returns.tolist()],
            longest_episode=max((int(each.steps.max()) for each in episodes if len(each)), default=0),
            step_seconds=max(each.collect_seconds / each.fragment.columns[VALID].size for each in batch),
            spans=[(trajectory.waited_seconds, trajectory.collect_seconds) for trajectory in batch],
            collect_times=[trajectory.collect_time for trajectory in batch if trajectory.collect_time],
        )


class Throughput:
    """Counts the updates of one run, on its event loop."""

    def __init__(
        self,
        progress: Progress,
        queue: ExperienceQueue,
        recorder: Recorder,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.rate = Rate()
        self.learner_waiting, self.actors_waiting = Waiting(), Waiting()
        self.step_seconds = 0.0
        """Seconds per step of one environment where it is slowest, by recent trajectories; 0 = unknown."""
        self._progress = progress
        self._queue = queue
        self._recorder = recorder
        self._clock = clock
        self._wall_clock = wall_clock
        self._recorded = clock()

    def begin(self) -> None:
        """Starts to measure the rate of steps."""
        self.rate.mark(self._progress.elapsed_seconds, self._progress.steps)

    def add(self, batch: BatchFigures, update: Update, *, waited: float, updated: float) -> None:
        """Counts and records an applied update whose version is published; `waited` and `updated` are seconds spent
        waiting for the batch and updating."""
        self._count(batch, update)
        self._note_waiting(batch, waited)
        self._record(update, waited, updated)

    def _count(self, batch: BatchFigures, update: Update) -> None:
        progress = self._progress
        progress.bad_updates = 0
        progress.updates += 1
        progress.steps += update.steps
        progress.policy_lag = sum(batch.lags) / len(batch.lags)
        progress.max_policy_lag_seen = max(progress.max_policy_lag_seen, *batch.lags)
        progress.episodes += len(batch.returns)
        progress.recent_returns.extend(batch.returns)
        progress.longest_episode = max(progress.longest_episode, batch.longest_episode)
        self.rate.mark(progress.elapsed_seconds, progress.steps)
        metrics.UPDATES.labels("applied").inc()
        metrics.STEPS.inc(update.steps)
        metrics.note_replay(update.metrics)
        for lag in batch.lags:
            metrics.POLICY_LAG.observe(lag)

    def _record(self, update: Update, waited: float, updated: float) -> None:
        progress = self._progress
        values = {**update.metrics, "policy/lag": progress.policy_lag, "policy/version": float(progress.version)}
        values["throughput/steps_per_second"] = self.rate.per_second()
        values["experience/queued_trajectories"] = float(len(self._queue))
        values["update/seconds"] = updated
        values["run/elapsed_seconds"] = progress.elapsed_seconds
        values["experience/waited_seconds"] = waited
        values["experience/learner_idle_ratio"] = self.learner_waiting.ratio()
        values["experience/actor_idle_ratio"] = self.actors_waiting.ratio()
        values["failures/rollouts"] = float(progress.failed_rollouts)
        values["failures/evaluations"] = float(progress.failed_evaluations)
        if progress.episode_return is not None:
            values["return/episodes"] = progress.episode_return
        self._recorder.record(progress.steps, values)

    def _note_waiting(self, batch: BatchFigures, waited: float) -> None:
        now, wall_time = self._clock(), self._wall_clock()
        worked = max(0.0, now - self._recorded - waited)
        self._recorded = now
        metrics.IDLE_RATIO.set(self.learner_waiting.add(now, waited, worked))
        self.step_seconds = max(batch.step_seconds, 0.9 * self.step_seconds)
        for span in batch.spans:
            self.actors_waiting.add(now, *span)
        for collect_time in batch.collect_times:
            # Clocks of two machines may differ, but no experience comes from the future.
            metrics.EXPERIENCE_AGE.observe(max(0.0, wall_time - collect_time))
        metrics.ACTORS_IDLE_RATIO.set(self.actors_waiting.ratio())
