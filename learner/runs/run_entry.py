"""One run as its learner knows it, and the counters of removed runs."""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import LearnerConfig
from ..experience import ExperienceQueue
from ..files.kept_models import ModelFolder
from ..policies.registry import PolicyRegistry
from .live_run import LiveRun
from .progress import RunState
from .run_file import RunRecord
from .training_loop import TrainingRun


def progress_summary(run: TrainingRun) -> dict[str, Any]:
    """How far the run has come, under the names of TrainingProgress and TrainingResult, as JSON can hold it."""
    progress, queue, throughput = run.progress, run.queue, run.throughput
    return {
        "steps": progress.steps,
        "policy_version": progress.version,
        "steps_per_second": throughput.rate.per_second(),
        "episode_return": progress.episode_return,
        "evaluation_return": progress.evaluation_return,
        "evaluations": progress.evaluations,
        "checkpoint_version": progress.checkpoint_version,
        "policy_lag": progress.policy_lag,
        "max_policy_lag_seen": progress.max_policy_lag_seen,
        "queued_trajectories": len(queue),
        "received_trajectories": queue.received,
        "dropped_trajectories": dict(queue.dropped),
        "elapsed_seconds": progress.elapsed_seconds,
        "episodes": progress.episodes,
        "learner_idle_ratio": throughput.learner_waiting.ratio(),
        "actor_idle_ratio": throughput.actors_waiting.ratio(),
        "best_evaluation_return": progress.best_evaluation_return,
        "best_version": progress.best_version,
        "failed_rollouts": progress.failed_rollouts,
        "failed_evaluations": progress.failed_evaluations,
        "last_failure": progress.last_failure,
        "last_failure_traceback": progress.last_failure_traceback,
        "policy_digest": run.registry.get("").blob.digest.hex() if run.registry.version else "",
    }


@dataclass(slots=True)
class Entry:
    """One run as this learner knows it."""

    config: LearnerConfig
    record: RunRecord
    registry: PolicyRegistry
    models: ModelFolder
    # Set between its start and its end in this process.
    live: LiveRun | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)
    writing: threading.Lock = field(default_factory=threading.Lock)
    # Why it cannot be prepared.
    unprepared: str = ""

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def state(self) -> RunState:
        """The state that may be shown: an end is on disk before it is shown."""
        state = self.live.run.progress.state if self.live is not None else RunState.CREATED
        # A run that is being prepared has no own state yet.
        return self.record.state if state is RunState.CREATED else state

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self.live.run.progress.reason if self.live is not None else self.record.reason

    @property
    def obstacle(self) -> str:
        """Why it makes no progress now; empty when it does."""
        return self.live.run.obstacles.sentence if self.live is not None else self.unprepared

    @property
    def obstacles(self) -> tuple[str, ...]:
        """The kinds of obstacles it has now."""
        if self.live is not None:
            return self.live.run.obstacles.kinds
        return ("disk",) if self.unprepared else ()

    @property
    def notes(self) -> list[str]:
        """Advice on what would help it."""
        return [self.live.run.obstacles.advice] if self.live is not None and self.live.run.obstacles.advice else []

    @property
    def standing(self) -> Mapping[str, Any]:
        """How far it has come."""
        return progress_summary(self.live.run) if self.live is not None else self.record.standing

    def tell(self) -> None:
        """Tells watchers to look again."""
        self.news.set()
        self.news = asyncio.Event()

    async def changed(self) -> None:
        """Waits for the next change; the caller's deadline bounds the wait."""
        await self.news.wait()

    def rewrite(self, **changes: Any) -> None:
        """Changes the record; returns when it is on disk. An end is final. May be called in any thread."""
        with self.writing:
            if not self.record.state.final:
                record = self.record.model_copy(update=changes)
                record.write(self.config.run_dir)
                self.record = record


@dataclass(slots=True)
class Totals:
    """Trajectories of runs that have ended, and of unknown runs."""

    received: int = 0
    trained: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, queue: ExperienceQueue) -> None:
        """Takes over the counters of a run that has ended; what still waited is dropped."""
        self.received += queue.received
        self.trained += queue.trained
        self.dropped.update(queue.dropped)
        if waiting := len(queue) + queue.training:
            self.dropped["RUN_ENDED"] += waiting
