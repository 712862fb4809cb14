import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from parlmesh.training.reward_scale import RewardScale, discounted_sums
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.types import EARNED, REWARD, TERMINATED, TRUNCATED, VALID


def columns(rewards, ended):
    return {
        REWARD: rewards,
        TERMINATED: ended,
        TRUNCATED: np.zeros_like(ended),
        VALID: np.ones_like(ended),
    }


@given(
    hnp.arrays(np.float32, (7, 2), elements=st.floats(-10, 10, width=32)),
    hnp.arrays(np.bool_, (7, 2)),
    st.floats(0.0, 1.0),
)
def test_sums_equal_those_of_a_slow_loop(rewards, ended, discount):
    found = discounted_sums(rewards, ended, discount)
    for env in range(2):
        total = 0.0
        for step in range(7):
            total = float(rewards[step, env]) + discount * total
            assert found[step, env] == pytest.approx(total, abs=1e-4)
            if ended[step, env]:
                total = 0.0


def test_scaled_rewards_have_sums_of_deviation_one_whatever_their_size():
    rng = np.random.default_rng(0)
    rewards = rng.normal(1000.0, 300.0, (200, 8)).astype(np.float32)
    ended = rng.random((200, 8)) < 0.05
    scale = RewardScale(1.0, 0.99, normalise=True)
    for part in range(4):
        chosen = slice(50 * part, 50 * part + 50)
        scale.add(columns(rewards[chosen], ended[chosen]))
    parts = [discounted_sums(scale(rewards[i : i + 50]), ended[i : i + 50], 0.99) for i in range(0, 200, 50)]
    assert np.concatenate(parts).std() == pytest.approx(1.0, rel=1e-3)


def test_a_fixed_scale_learns_nothing():
    scale = RewardScale(0.5, 0.99, normalise=False)
    rewards = np.full((3, 2), 8.0, np.float32)
    scale.add(columns(rewards, np.zeros((3, 2), np.bool_)))
    assert np.array_equal(scale(rewards), np.full((3, 2), 4.0, np.float32))
    assert scale.tensors() == {}


def test_a_restored_scale_goes_on_as_the_original():
    first, second = (RewardScale(1.0, 0.9, normalise=True) for _ in range(2))
    rewards, ended = np.arange(10, dtype=np.float32).reshape(5, 2), np.zeros((5, 2), np.bool_)
    first.add(columns(rewards, ended))
    second.restore(first.tensors())
    for scale in (first, second):
        scale.add(columns(3 * rewards, ended))
    assert np.array_equal(first(rewards), second(rewards))


@pytest.mark.parametrize("trajectory_steps", [8, 64, 400])
def test_the_scale_does_not_depend_on_where_fragments_are_cut(trajectory_steps):
    rng = np.random.default_rng(1)
    rewards, ended = rng.normal(1.0, 0.5, (400, 4)).astype(np.float32), rng.random((400, 4)) < 0.005
    whole = RewardScale(1.0, 0.999, normalise=True)
    whole.add(columns(rewards, ended))
    cut, sums = RewardScale(1.0, 0.999, normalise=True), discounted_sums(rewards, ended, 0.999)
    for start in range(0, 400, trajectory_steps):
        part = slice(start, start + trajectory_steps)
        before = np.where(ended[start - 1], 0.0, sums[start - 1]) if start else np.zeros(4)
        cut.add({**columns(rewards[part], ended[part]), EARNED: before.astype(np.float32)})
    np.testing.assert_allclose(cut(rewards), whole(rewards), rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [({}, False), ({"reward_scale": 0.5}, True), ({"reward_clip": 1.0}, True), ({"normalise_rewards": True}, True)],
)
def test_rewards_that_no_setting_changes_need_no_scale(settings, scaled):
    assert (RewardScale.of(PpoConfig(**settings)) is not None) == scaled


def test_rewards_beyond_the_clip_count_as_the_clip():
    rewards = np.array([[-30.0], [4.0], [25.0]], np.float32)
    assert RewardScale(0.5, 0.9, normalise=False, clip=10.0)(rewards)[:, 0].tolist() == [-10.0, 2.0, 10.0]
