"""When a run ends, and in which state: stopped, failed, goal reached, or budget used up. Does no I/O."""

from dataclasses import dataclass

from ..config import TrainingConfig
from .progress import Progress, RunState


@dataclass(slots=True)
class RunEnd:
    """The end of one run. The first reason counts; a failure outweighs a stop."""

    config: TrainingConfig
    progress: Progress
    stop_reason: str | None = None
    failure: str | None = None

    @property
    def told(self) -> bool:
        """Whether the run was asked to end."""
        return self.failure is not None or self.stop_reason is not None

    @property
    def goal_reached(self) -> bool:
        """Whether enough evaluations in a row reached the goal."""
        return self.progress.goals_in_a_row >= self.config.goal_evaluations

    @property
    def reached(self) -> bool:
        """Whether training has ended."""
        return self.told or self.goal_reached or self.progress.steps >= self.config.step_budget

    def stop(self, reason: str) -> None:
        """Stops the run on request."""
        self.stop_reason = self.stop_reason or reason

    def fail(self, reason: str) -> None:
        """Ends a run that cannot continue."""
        self.failure = self.failure or reason

    def state_and_reason(self) -> tuple[RunState, str]:
        """The state it ends in, and the reason to show."""
        if self.failure is not None:
            return RunState.FAILED, self.failure
        if self.stop_reason is not None:
            return RunState.STOPPED, self.stop_reason
        if self.goal_reached:
            reason = f"{self.progress.goals_in_a_row} evaluations in a row reached {self.config.goal_return:g}"
            return RunState.FINISHED, reason
        return RunState.FINISHED, f"used the budget of {self.config.step_budget} steps"
