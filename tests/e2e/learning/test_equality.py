"""A fleet of one at lag 0 is a serial run in two more processes."""

import json

import pytest

pytestmark = pytest.mark.e2e

TRAINING = {
    "training.seed": 3,
    "training.step_budget": 10_000,
    "training.goal_return": "null",
    "training.max_policy_lag": 0,
    "training.evaluation_interval_steps": 4_000,
}


def summary(fleet, process):
    process.wait_for("run_ended", 100.0)
    return json.loads((fleet.run_dir / "summary.json").read_text())


DQN = {
    "training.algorithm": "dqn",
    "training.num_envs": 8,
    "training.step_budget": 6_000,
    "training.evaluation_interval_steps": 2_500,
}


@pytest.mark.parametrize("changes", [{}, pytest.param(DQN, marks=pytest.mark.slow)], ids=["ppo", "dqn"])
def test_one_actor_at_lag_zero_equals_the_serial_run_bit_for_bit(fleet, changes):
    settings = {**TRAINING, **changes}
    serial_dir = fleet.folder / "serial"
    serial = fleet.learner(**settings, mode="serial", run_dir=serial_dir)
    serial.wait_for("run_ended", 100.0)
    serial.terminate()
    serial.assert_exits(0)
    expected = json.loads((serial_dir / "summary.json").read_text())

    fleet.scheduler()
    learner = fleet.learner(**settings)
    fleet.actor()
    found = summary(fleet, learner)

    timing = {"seconds", "steps_per_second"}
    assert {key: value for key, value in found.items() if key not in timing} == {
        key: value for key, value in expected.items() if key not in timing
    }
    assert len(found["policy_digest"]) == 64
    assert found["evaluation_return"] is not None
