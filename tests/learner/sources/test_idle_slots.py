from learner.config import TrainingConfig
from learner.sources.idle_slots import crowded


def test_more_slots_than_a_run_can_keep_busy_are_said_with_the_number_that_helps():
    config = TrainingConfig(max_policy_lag=1, batch_trajectories=1)
    assert crowded(2, config) == ""
    assert "3 slots could collect, and this run keeps at most 2 busy" in crowded(3, config)
    assert crowded(3, config).endswith("set batch_trajectories to 2 to use them all")
    assert crowded(4, TrainingConfig(max_policy_lag=1, batch_trajectories=2)) == ""
