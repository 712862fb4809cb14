"""A fleet's progress as one plain line."""

from parlmesh.cli.screen.fleet_view import FleetView, clock, failures_text, goal_text, number


def plain_line(view: FleetView, elapsed_seconds: float) -> str:
    """The view for a pipe or a log file."""
    parts = [f"{clock(elapsed_seconds):>5}", view.state]
    if view.training is not None:
        progress = view.training.progress
        parts += [
            f"steps {progress.steps:,}/{progress.step_budget:,}",
            f"{progress.steps_per_second:,.0f}/s",
            f"return {number(progress.episode_return if progress.HasField('episode_return') else None)}",
            f"evaluation {goal_text(view.training)}",
            f"version {progress.policy_version}",
            f"lag {progress.policy_lag:.1f} (max {progress.max_policy_lag_seen})",
        ]
        failures = failures_text(view.training)
        parts += [f"failed {failures}"] if failures else []
        parts += [f"obstacle: {view.training.obstacle}"] if view.training.obstacle else []
    if not view.serial:
        queued = view.training.progress.queued_trajectories if view.training is not None else 0
        tasks = view.statistics.queued_tasks if view.statistics is not None else 0
        if view.training is not None:
            progress = view.training.progress
            parts.append(f"waiting {progress.learner_idle_ratio:.0%} learner, {progress.actor_idle_ratio:.0%} actors")
        parts += [f"queued {queued} trajectories, {tasks} tasks", f"actors {view.ready_actors}/{view.total_actors}"]
    if view.supervised:
        parts.append(f"restarts {view.restarts()}")
    return "  ".join(parts)
