"""Advantages of episodes against others with the same start, by hand."""

import numpy as np

from parlmesh.algorithms.group_relative import group_relative


def test_episodes_of_one_prompt_are_compared_and_others_are_not():
    # Three environments, four steps: two episodes of prompt 7 that earn 1 and 3, one of prompt 8, one cut off.
    observations = np.array([[7, 7, 8], [1, 2, 3], [0, 4, 3], [9, 9, 3]], np.float32)[:, :, None]
    rewards = np.array([[0, 1, 0], [1, 2, 0], [0, 0, 5], [0, 0, 0]], np.float32)
    ended = np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 0]], np.bool_)
    valid = np.array([[1, 1, 1], [1, 1, 1], [0, 0, 1], [1, 1, 0]], np.bool_)
    none = np.zeros_like(ended)
    whole, advantages, returns = group_relative(observations, rewards, valid, ended, none, discount=1.0)
    assert whole.T.tolist() == [[True, True, False, False], [True, True, False, False], [True, True, True, False]]
    np.testing.assert_allclose(advantages.T, [[-1, -1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]], atol=1e-5)
    np.testing.assert_allclose(returns.T, [[1, 1, 0, 0], [3, 2, 0, 0], [5, 5, 5, 0]])


def test_a_truncated_episode_counts_and_later_rewards_are_discounted():
    rewards = np.array([[0.0, 0.0], [1.0, 2.0]], np.float32)
    flags = np.array([[0, 0], [1, 1]], np.bool_)
    observations = np.zeros((2, 2, 1), np.float32)
    _, advantages, returns = group_relative(observations, rewards, ~flags | True, ~flags & False, flags, discount=0.5)
    np.testing.assert_allclose(returns, [[0.5, 1.0], [1.0, 2.0]])
    np.testing.assert_allclose(advantages[0], [-1, 1], atol=1e-4)
