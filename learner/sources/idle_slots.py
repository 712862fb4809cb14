"""Whether actors have more slots than a run can use, and the setting that would use them all."""

from ..config import TrainingConfig


def crowded(slots: int, config: TrainingConfig) -> str:
    """A sentence when there are more slots than the run can keep busy; empty otherwise."""
    used = (config.max_policy_lag + 1) * config.batch_trajectories
    if slots <= used:
        return ""
    wanted = -(-slots // (config.max_policy_lag + 1))
    return (
        f"{slots} slots could collect, and this run keeps at most {used} busy, which is (training.max_policy_lag + 1) x"
        f" training.batch_trajectories: set batch_trajectories to {wanted} to use them all"
    )
