"""Where an update is counted: the run's progress, its record, the metrics, and who waited for whom."""

from collections.abc import Callable, Sequence

from parlmesh.telemetry import Waiting
from parlmesh.training.trainer import Update
from parlmesh.types import VALID, EpisodeColumns, Trajectory

from .. import metrics
from ..experience import ExperienceQueue
from ..files.recorder import Recorder
from .progress import Progress, Rate


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

    def count(self, batch: Sequence[Trajectory], update: Update) -> None:
        """Adds an applied update to the progress, while its version is still the newest."""
        progress = self._progress
        lags = [progress.version - trajectory.policy_version for trajectory in batch]
        progress.bad_updates = 0
        progress.updates += 1
        progress.steps += update.steps
        progress.policy_lag = sum(lags) / len(lags)
        progress.max_policy_lag_seen = max(progress.max_policy_lag_seen, *lags)
        for trajectory in batch:
            progress.episodes += len(trajectory.fragment.episodes)
            episodes = EpisodeColumns.of(trajectory.fragment.episodes)
            if len(episodes):
                progress.recent_returns.extend(episodes.returns.tolist())
                progress.longest_episode = max(progress.longest_episode, int(episodes.steps.max()))
        self.rate.mark(progress.elapsed_seconds, progress.steps)
        metrics.UPDATES.labels("applied").inc()
        metrics.STEPS.inc(update.steps)
        metrics.note_replay(update.metrics)
        for lag in lags:
            metrics.POLICY_LAG.observe(lag)

    def record(self, batch: Sequence[Trajectory], update: Update, *, waited: float, updated: float) -> None:
        """Records a counted update; `waited` and `updated` are seconds spent waiting for the batch and updating."""
        progress = self._progress
        self._note_waiting(batch, waited)
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

    def _note_waiting(self, batch: Sequence[Trajectory], waited: float) -> None:
        now, wall_time = self._clock(), self._wall_clock()
        worked = max(0.0, now - self._recorded - waited)
        self._recorded = now
        metrics.IDLE_RATIO.set(self.learner_waiting.add(now, waited, worked))
        slowest = max(trajectory.collect_seconds / trajectory.fragment.columns[VALID].size for trajectory in batch)
        self.step_seconds = max(slowest, 0.9 * self.step_seconds)
        for trajectory in batch:
            self.actors_waiting.add(now, trajectory.waited_seconds, trajectory.collect_seconds)
            if trajectory.collect_time:
                # Clocks of two machines may differ, but no experience comes from the future.
                metrics.EXPERIENCE_AGE.observe(max(0.0, wall_time - trajectory.collect_time))
        metrics.ACTORS_IDLE_RATIO.set(self.actors_waiting.ratio())
