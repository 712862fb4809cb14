"""How far a run has come, for its status and for its record."""

from typing import Any

from .run import TrainingRun


def standing_of(run: TrainingRun) -> dict[str, Any]:
    """How far the run has come, under the names of TrainingProgress and TrainingResult, as JSON can hold it."""
    progress, queue, accounts = run.progress, run.queue, run.accounts
    return {
        "steps": progress.steps,
        "policy_version": progress.version,
        "steps_per_second": accounts.rate.per_second(),
        "episode_return": progress.episode_return,
        "evaluation_return": progress.evaluation_return,
        "policy_lag": progress.policy_lag,
        "max_policy_lag_seen": progress.max_policy_lag_seen,
        "queued_trajectories": len(queue),
        "received_trajectories": queue.received,
        "dropped_trajectories": dict(queue.dropped),
        "elapsed_seconds": progress.elapsed_seconds,
        "episodes": progress.episodes,
        "learner_idle_ratio": accounts.learner_waiting.ratio(),
        "actor_idle_ratio": accounts.actors_waiting.ratio(),
        "best_evaluation_return": progress.best_evaluation_return,
        "best_version": progress.best_version,
        "failed_rollouts": progress.failed_rollouts,
        "failed_evaluations": progress.failed_evaluations,
        "last_failure": progress.last_failure,
        "last_failure_traceback": progress.last_failure_traceback,
        "policy_digest": run.registry.get("").blob.digest.hex() if run.registry.version else "",
    }
