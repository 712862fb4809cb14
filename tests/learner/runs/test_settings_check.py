import pytest

from learner.build import check_training, with_size_limits
from learner.config import ExperienceConfig, LearnerConfig, TrainingConfig
from learner.experience.sender_strikes import Strikes
from parlmesh.errors import ConfigError


@pytest.mark.parametrize(
    ("learner", "training", "sentence"),
    [
        (
            {"experience": {"max_queued_trajectories": 4}},
            {"batch_trajectories": 5},
            r"training.batch_trajectories is 5, but at most 4 .* may wait \(experience.max_queued_trajectories\)",
        ),
        ({}, {"hidden": [65_536, 65_536]}, r"gives a policy of 17\d+ bytes; the limit is 268435456 \(max_policy_bytes"),
        (
            {},
            {"num_envs": 1_000, "trajectory_steps": 1_000},
            r"trajectory_steps 1000 x num_envs 1000 has \d+ bytes; .* 4194304 \(experience.max_trajectory_bytes",
        ),
    ],
)
def test_settings_that_can_never_work_together_are_told_in_one_sentence(learner, training, sentence):
    with pytest.raises(ConfigError, match=sentence):
        check_training(LearnerConfig(**learner), TrainingConfig(**training))


def test_a_serial_run_sends_nothing_and_may_have_longer_trajectories():
    check_training(LearnerConfig(mode="serial"), TrainingConfig(num_envs=1_000, trajectory_steps=1_000))


def test_limits_follow_the_run_that_starts_by_itself_unless_they_are_set():
    training = TrainingConfig(num_envs=64, trajectory_steps=4_000)
    found = with_size_limits(LearnerConfig(training=training))
    check_training(found, training)
    assert found.listen.max_message_bytes > found.experience.max_trajectory_bytes > 4 * 1024 * 1024
    chosen = LearnerConfig(training=training, experience=ExperienceConfig(max_trajectory_bytes=4_000_000))
    with pytest.raises(ConfigError, match=r"the limit is 4000000 \(experience.max_trajectory_bytes"):
        check_training(with_size_limits(chosen), training)
    assert with_size_limits(LearnerConfig()) == LearnerConfig()


def test_a_sender_that_changes_its_name_costs_no_memory():
    strikes = Strikes()
    for number in range(1_000):
        strikes.add(f"node-{number}", "SHAPE", "no")
    assert len(strikes.counts) == 201
    assert strikes.counts["others"] == {"SHAPE": 800}
