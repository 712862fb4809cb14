"""How `parlmesh up` ended: whether the run reached its end, whether too much failed, and the exit code."""

from dataclasses import dataclass

from parlmesh.v1.training_service_pb2 import TRAINING_STATE_FINISHED, Training

FEW_FAILURES = 3
FAULTY_SHARE = 0.1
"""A node that briefly fails costs a few rollouts; a larger share is a fault that must not go unnoticed."""


@dataclass(frozen=True)
class Ending:
    """How `up` ended: the learner's last answer, and the reason if the run did not finish."""

    training: Training | None
    trouble: str = ""
    """Empty when the run ended on its own."""

    @property
    def reached(self) -> bool:
        """Whether the goal or the step budget was reached."""
        return self.training is not None and self.training.state == TRAINING_STATE_FINISHED

    @property
    def unevaluated(self) -> bool:
        """Whether all evaluations failed, so the quality of the policy is unknown."""
        if self.training is None:
            return False
        progress = self.training.progress
        return progress.failed_evaluations > 0 and not progress.HasField("evaluation_return")

    @property
    def faulty(self) -> bool:
        """Whether so many rollouts failed that something is wrong with the environment."""
        if self.training is None:
            return False
        progress = self.training.progress
        tried = progress.failed_rollouts + progress.received_trajectories
        return progress.failed_rollouts > max(FEW_FAILURES, FAULTY_SHARE * tried)

    @property
    def stillborn(self) -> bool:
        """Whether nothing was learnt because rollouts failed or their trajectories were refused."""
        if self.training is None or self.reached:
            return False
        progress = self.training.progress
        return not progress.steps and bool(progress.failed_rollouts or progress.dropped_trajectories)

    @property
    def exit_code(self) -> int:
        """0 when the goal or budget was reached, evaluations succeeded and few rollouts failed; 1 otherwise."""
        return 0 if self.reached and not self.unevaluated and not self.faulty else 1
