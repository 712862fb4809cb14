import pytest

from parlmesh.rollouts import Collector
from parlmesh.types import EARNED
from tools.bench.ours.training import forced_lag
from tools.bench.ours.training.forced_lag import train


@pytest.mark.slow
@pytest.mark.parametrize("lag", [4, 8])
def test_acrobot_is_learnt_from_older_policies_nearly_as_well_as_from_the_newest(lag):
    earned = train("ppo-acrobot", {"targets": "vtrace"}, lag=lag, seed=1, steps=120_000).thirds()
    # Without lag the last third earns -87; with GAE at lag 4 about -190.
    assert earned[-1] > -96.0


def test_experience_of_an_older_policy_is_learnt_from_at_all():
    course = train("ppo-acrobot", {"targets": "vtrace"}, lag=3, seed=0, steps=10_000)
    assert len(course.ends) > 0
    assert -500.0 <= course.greedy < 0.0


def test_rewards_are_scaled_as_in_a_run(monkeypatch):
    seen = []

    class Watched(Collector):
        def collect(self, policy, steps, opponents=()):
            seen.append(super().collect(policy, steps, opponents))
            return seen[-1]

    monkeypatch.setattr(forced_lag, "Collector", Watched)
    train("ppo-pendulum", {"normalise_rewards": True, "epochs": 1}, lag=0, seed=0, steps=1_000)
    # Without it sums of rewards start anew with every trajectory, and rewards come out several times too large.
    assert EARNED in seen[0].columns
