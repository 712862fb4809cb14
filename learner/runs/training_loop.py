"""One training from its first policy to its end: asks for experience, updates, publishes, evaluates, checkpoints.

The same loop serves a fleet and a serial run; they differ only in their source of experience.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from parlmesh.errors import FleetError, InvalidInput, PermissionDenied
from parlmesh.exception_text import frames_of, sentence, tell
from parlmesh.rpc.task_group import set_within
from parlmesh.telemetry import get_logger
from parlmesh.training.trainer import Trainer, Update
from parlmesh.types import Trajectory

from .. import metrics
from ..config import TrainingConfig
from ..experience import ExperienceQueue
from ..experience.rollout_demand import rollouts_wanted
from ..experience.sender_strikes import UNASKED
from ..files.checkpoint import Checkpoint, CheckpointFolder
from ..files.disk_retry import Disk, DiskRefuses
from ..files.kept_models import ModelFolder
from ..files.recorder import Recorder
from ..policies.league import League
from ..policies.registry import PolicyRegistry
from ..policies.version_numbers import Versions
from ..sources.experience_source import ExperienceSource
from .evaluation_result import Candidate, EvaluationResults
from .evaluations import Evaluations
from .obstacles import PATIENCE_SECONDS, Obstacles
from .progress import Progress, RunState
from .run_end import RunEnd
from .update_accounting import BatchFigures, Throughput

log = get_logger("parlmesh.learner")
T = TypeVar("T")


class TrainingRun:
    """Used on the event loop; only updates and file writing run elsewhere."""

    def __init__(
        self,
        config: TrainingConfig,
        *,
        trainer: Trainer,
        registry: PolicyRegistry,
        queue: ExperienceQueue,
        checkpoints: CheckpointFolder,
        models: ModelFolder,
        recorder: Recorder,
        versions: Versions,
        max_policy_lag: int,
        about: Mapping[str, Any],
        league: League | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.registry = registry
        self.league = league
        self.queue = queue
        self.progress = Progress(version=versions.first - 1)
        self.throughput = Throughput(self.progress, queue, recorder, clock, wall_clock)
        self._trainer = trainer
        self._versions = versions
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._results = EvaluationResults(self.progress, config.goal_return, models, recorder, about)
        self._max_lag = max_policy_lag
        self._clock = clock
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._ticked = clock()
        self._update_seconds = self._waited_seconds = 0.0
        self._end_of_run = RunEnd(config, self.progress)
        self._pause_unsaved = False
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="training")
        self.obstacles = Obstacles(registry.run_id, self._notify)
        self._disk = Disk(self._threads, self.obstacles)
        self._evaluations = Evaluations(
            config,
            self.progress,
            self.throughput,
            registry,
            self._results,
            recorder,
            self._disk,
            league=league,
            wake=self.wake,
            changed=self._notify,
        )
        # Set by the run's owner. `on_end` is called in the training thread, before the end is announced.
        self.on_change: Callable[[], None] = lambda: None
        self.on_end: Callable[[RunState, str], None] = lambda state, reason: None
        self.on_strike: Callable[[str, str, str], None] = lambda sender, reason, why: None

    def restore(self, checkpoint: Checkpoint) -> None:
        """Returns to a checkpoint, before `train`."""
        self._trainer.restore(checkpoint.of_trainer)
        self.progress.restore(checkpoint.counters)
        self.progress.checkpoint_version = checkpoint.version
        if checkpoint.counters["goal_return"] != self.config.goal_return:
            self.progress.goals_in_a_row = 0
        log.info(
            "run_resumed",
            checkpoint_version=checkpoint.version,
            first_version=self.progress.version + 1,
            steps=self.progress.steps,
        )

    def policy_blob(self) -> bytes:
        """The policy in training."""
        return self._trainer.policy_blob()

    async def train(self, source: ExperienceSource, *, paused: bool = False) -> None:
        """Runs to the end; `progress` says how it ended. A run that was paused before waits to be resumed."""
        self._set_state(RunState.PAUSED if paused else RunState.RUNNING)
        self._ticked = self._clock()
        self.throughput.begin()
        if not self.progress.next_evaluation:
            self.progress.next_evaluation = self.config.evaluation_interval_steps
        try:
            await self._reserve()
            self.publish()
            await self._enter_league()
            await self._loop(source)
            await self._close(source)
        except DiskRefuses as error:
            # The learner stops; on disk the run is still running, and it continues from its last checkpoint.
            log.error("run_not_saved", error=str(error), steps=self.progress.steps)
            self._set_state(RunState.STOPPED)
        except Exception as error:
            log.exception("run_failed", error)
            reason = error.message if isinstance(error, FleetError) else sentence(error)
            self.progress.note_failure(reason, frames_of(tell(error)))
            with contextlib.suppress(DiskRefuses):
                await self._end(RunState.FAILED, reason)
        finally:
            self._evaluations.give_up()
            self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def ending(self) -> bool:
        """Whether the run was asked to end."""
        return self._end_of_run.told

    def publish(self) -> None:
        """Serves the trainer's policy as the next version."""
        self.progress.version += 1
        self.registry.publish(self.progress.version, self._trainer.policy_blob())
        metrics.POLICY_VERSION.set(self.progress.version)

    async def _reserve(self) -> None:
        """Writes the next version down before publishing it, so that even a killed learner never publishes it again."""
        if self._versions.lacks(self.progress.version + 1):
            await self._disk.write(self._versions.reserve, self.progress.version + 1)

    async def _enter_league(self) -> None:
        """Makes the newest version an opponent when it is due; it is on disk before any actor plays against it."""
        version = self.progress.version
        if self.league is not None and self.league.due(version):
            await self._disk.write(self.league.save, version, self.registry.get("", version).blob.data)
            self.league.enter(version)

    def receive(self, trajectory: Trajectory) -> None:
        """Queues a trajectory, or raises the reason for refusing it."""
        try:
            self.queue.put(trajectory, self.progress.version)
        except FleetError as error:
            if isinstance(error, InvalidInput | PermissionDenied) or error.reason == UNASKED:
                self.on_strike(trajectory.sender, error.reason, error.message)
            self.obstacles.note_refusal(error)
            raise
        else:
            self.obstacles.note_admission()
        finally:
            # Even after a refusal, because another may have to be asked for.
            self.wake()

    def wake(self) -> None:
        """Lets the loop look again: something arrived or failed."""
        self._wake.set()

    def stop(self, reason: str, *, leaving: bool = False) -> None:
        """Ends the run after the current update. A learner that is leaving does not wait for a disk that refuses."""
        if leaving:
            self._disk.leave()
        self._end_of_run.stop(reason)
        self.wake()

    def fail(self, reason: str) -> None:
        """Ends the run as failed after the current update."""
        self._end_of_run.fail(reason)
        self.wake()

    def note_failed_rollout(self, sentence: str, traceback: str) -> None:
        """Counts a rollout that failed."""
        self.progress.failed_rollouts += 1
        self.progress.note_failure(sentence, traceback)
        self._notify()

    def pause(self) -> None:
        """Asks for nothing and trains on nothing until resumed."""
        self.progress.check_state(RunState.RUNNING, "paused")
        self._pause_unsaved = True
        self._set_state(RunState.PAUSED)
        self.wake()

    def resume(self) -> None:
        """Continues after a pause."""
        self.progress.check_state(RunState.PAUSED, "resumed")
        self._ticked = self._clock()
        self._set_state(RunState.RUNNING)
        self.wake()

    async def changed(self) -> None:
        """Waits for the next change of progress; the caller's deadline bounds the wait."""
        await self._changed.wait()

    async def _loop(self, source: ExperienceSource) -> None:
        # The run may have been killed between a checkpoint and the evaluation that was due then.
        await self._evaluate_if_due(source)
        while (batch := await self._next_batch(source)) is not None:
            fragments = [trajectory.fragment for trajectory in batch]
            share = self.progress.steps / self.config.step_budget
            started = self._clock()
            update = await self._in_thread(self._trainer.update, fragments, share)
            self._update_seconds = self._clock() - started
            self.queue.finish(len(batch), applied=update.applied)
            self._tick()
            await self._reserve()
            self._account(batch, update)
            await self._enter_league()
            await self._write_record()
            if update.applied and self.progress.updates % self.config.checkpoint_interval_versions == 0:
                await self._save(source)
            await self._evaluate_if_due(source)
        # After a stop the actors may have been stopped too: then no actor can evaluate.
        if self.ending or self._end_of_run.goal_reached:
            return
        if not self._evaluations.under_way:
            self._evaluations.start(source)
        await self._await_evaluation()

    async def _next_batch(self, source: ExperienceSource) -> list[Trajectory] | None:
        """A batch, or None when the run has ended."""
        started = self._clock()
        try:
            while True:
                self._wake.clear()
                if self._evaluations.done:
                    await self._settle_evaluation()
                if self._end_of_run.reached:
                    return None
                if self.progress.state is RunState.PAUSED and self._pause_unsaved:
                    self._pause_unsaved = False
                    await self._save(source)
                if self.progress.state is RunState.RUNNING:
                    await self._top_up(source)
                # The top-up took time; the run may have been paused in the meantime.
                if self.progress.state is RunState.RUNNING:
                    batch = self.queue.take(self.config.batch_trajectories, self.progress.version)
                    if batch is not None:
                        return batch
                if not await set_within(self._wake, PATIENCE_SECONDS):
                    waited = round(self._clock() - started, 1)
                    if self.progress.state is RunState.RUNNING:
                        self.obstacles.note_waiting(waited, source.outstanding)
        finally:
            self._waited_seconds = self._clock() - started
            metrics.IDLE_SECONDS.inc(self._waited_seconds)

    async def _top_up(self, source: ExperienceSource) -> None:
        wanted = rollouts_wanted(
            batch=self.config.batch_trajectories,
            max_policy_lag=self._max_lag,
            outstanding=source.outstanding,
            queued=len(self.queue),
            training=self.queue.training,
        )
        if wanted:
            await source.request(wanted, self.progress.version)

    def _account(self, batch: Sequence[Trajectory], update: Update) -> None:
        progress = self.progress
        if not update.applied:
            progress.bad_updates += 1
            metrics.UPDATES.labels("not_finite").inc()
            senders = sorted({trajectory.sender for trajectory in batch})
            why = f"an update of version {progress.version} with its trajectory was not finite"
            log.error("update_not_finite", version=progress.version, in_a_row=progress.bad_updates, senders=senders)
            for sender in senders:
                self.on_strike(sender, "NOT_FINITE_UPDATE", why)
            if progress.bad_updates >= self.config.max_bad_updates:
                self.fail(
                    f"{progress.bad_updates} updates in a row were not finite; version {progress.version} is served"
                )
            return
        figures = BatchFigures.of(batch, progress.version)
        self.publish()
        self.throughput.add(figures, update, waited=self._waited_seconds, updated=self._update_seconds)
        if self.league is not None:
            self._recorder.record(self.progress.steps, self.league.curves())
        self._notify()

    async def _evaluate_if_due(self, source: ExperienceSource) -> None:
        """Starts a due evaluation. At lag 0 the run waits for the result, so that it ends where a serial run ends."""
        if self._evaluations.due:
            self._evaluations.start(source)
            if self._max_lag == 0:
                await self._await_evaluation()
                self._ticked = self._clock()

    async def _await_evaluation(self) -> None:
        """Waits for the result, unless the run must end: a stop does not wait for whole episodes."""
        while self._evaluations.under_way and not self.ending:
            self._wake.clear()
            if self._evaluations.done:
                await self._settle_evaluation()
            else:
                await self._wake.wait()

    async def _settle_evaluation(self) -> None:
        await self._evaluations.settle()
        await self._write_record()

    async def _write_record(self) -> None:
        """Writes the points of curves. A disk that refuses holds the run up, so that no gap is left."""
        if self._recorder.unwritten:
            await self._disk.write(self._recorder.write)

    async def _close(self, source: ExperienceSource) -> None:
        progress = self.progress
        self._evaluations.give_up()
        await self._save(source)
        state, reason = self._end_of_run.state_and_reason()
        last = self.registry.get("", progress.version).blob
        await self._disk.write(self._results.keep_last, Candidate(last, progress.steps))
        await self._disk.write(self._versions.give_back, progress.version)
        digest = last.digest.hex()
        await self._disk.write(self._recorder.finish, progress, state, reason, digest, dict(self.queue.dropped))
        await self._end(state, reason)

    async def _save(self, source: ExperienceSource) -> None:
        # Queued trajectories are not part of a checkpoint: a serial source returns to the state before them.
        counters = {**self.progress.counters(), "goal_return": self.config.goal_return}
        version = self.progress.version
        await self._disk.write(self._write, source, counters, len(self.queue))
        self.progress.checkpoint_version = version

    def _write(self, source: ExperienceSource, counters: Mapping[str, Any], untrained: int) -> None:
        of_source = source.tensors(untrained=untrained)
        checkpoint = Checkpoint.of(self.progress.version, counters, self._trainer.tensors(), of_source)
        self._checkpoints.save(checkpoint)

    async def _end(self, state: RunState, reason: str) -> None:
        # Recorded before it is announced.
        await self._disk.write(self.on_end, state, reason)
        self.progress.reason = reason
        self._set_state(state)
        log.info("run_ended", state=state.value, reason=reason, steps=self.progress.steps)

    def _tick(self) -> None:
        """Adds to the training time: all time except pauses and evaluations that the run waits for."""
        now = self._clock()
        self.progress.elapsed_seconds += now - self._ticked
        self._ticked = now

    def _set_state(self, state: RunState) -> None:
        self.progress.state = state
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
