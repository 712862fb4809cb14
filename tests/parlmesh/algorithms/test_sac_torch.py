import math

import numpy as np
import pytest
import torch

from parlmesh.algorithms.sac_torch import policy_gradient, soft_targets, squashed_gaussian
from parlmesh.algorithms.td3_torch import policy_gradient as td3_gradient
from parlmesh.algorithms.td3_torch import smoothed, twin_targets
from parlmesh.policies.bounded_actions import NoisyMean, SquashedGaussian, log_slope, scale


def density(mean, log_std, action):
    """The density of one squashed action, from the formula of the log-probability."""
    noise = (np.arctanh(action) - mean) / math.exp(log_std)
    outputs = torch.tensor([[mean, log_std]], dtype=torch.float64).repeat(len(action), 1)
    drawn = squashed_gaussian(outputs, torch.from_numpy(noise)[:, None])
    np.testing.assert_allclose(drawn.actions[:, 0].numpy(), action, atol=1e-9)
    return np.exp(drawn.log_probs.numpy())


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, -1.0), (0.4, -0.5), (-0.8, -1.5)])
def test_the_squashed_density_integrates_to_one_and_gives_the_mean_of_what_is_drawn(mean, log_std):
    edges = np.linspace(-1.0, 1.0, 200_001)
    middles = (edges[1:] + edges[:-1]) / 2
    found, width = density(mean, log_std, middles), edges[1] - edges[0]
    assert found.sum() * width == pytest.approx(1.0, abs=1e-4)
    drawn = np.tanh(mean + math.exp(log_std) * np.random.default_rng(0).standard_normal(200_000))
    assert (found * middles).sum() * width == pytest.approx(drawn.mean(), abs=0.005)
    # Check part of the range too: a wrong slope may still integrate to 1.
    assert found[middles > 0.5].sum() * width == pytest.approx((drawn > 0.5).mean(), abs=0.005)


def test_log_probabilities_of_several_dimensions_add_up_and_stay_exact_far_out():
    outputs = torch.tensor([[0.3, -0.2, -1.0, 0.5]], dtype=torch.float64)
    noise = torch.tensor([[0.7, -1.1]], dtype=torch.float64)
    parts = [squashed_gaussian(outputs[:, [d, d + 2]], noise[:, [d]]).log_probs for d in range(2)]
    torch.testing.assert_close(squashed_gaussian(outputs, noise).log_probs, parts[0] + parts[1])
    # log(1 − tanh²(20)) = log 4 − 40 + 2 log(1 + e^−40)
    assert float(log_slope(np.array(20.0))) == pytest.approx(math.log(4.0) - 40.0)
    assert math.isfinite(float(squashed_gaussian(torch.tensor([[40.0, 1.0]]), torch.tensor([[1.0]])).log_probs))


def test_numpy_draws_by_the_same_density_as_torch_learns_by():
    outputs = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    action, log_prob = SquashedGaussian(0.0).sample(outputs, np.random.default_rng(1))
    noise = np.random.default_rng(1).standard_normal((50, 3), dtype=np.float32)
    drawn = squashed_gaussian(torch.from_numpy(outputs), torch.from_numpy(noise))
    np.testing.assert_allclose(action, drawn.actions.numpy(), atol=1e-6)
    np.testing.assert_allclose(log_prob, drawn.log_probs.numpy(), atol=1e-4)


def test_random_actions_fill_the_range_and_say_so():
    rng = np.random.default_rng(0)
    for sampler, width in ((SquashedGaussian(1.0), 2), (NoisyMean(1.0, 0.1), 1)):
        action, log_prob = sampler.sample(np.full((4_000, width), 5.0, np.float32), rng)
        assert np.abs(action).max() <= 1.0
        np.testing.assert_allclose(np.histogram(action, 4, (-1, 1))[0], 1_000, rtol=0.12)
        np.testing.assert_allclose(log_prob, -math.log(2.0), rtol=1e-6)


def test_noise_is_cut_off_at_the_ends_and_the_mode_has_none():
    outputs = np.array([[0.0], [9.0]], np.float32)
    action, log_prob = NoisyMean(0.0, 0.5).sample(outputs, np.random.default_rng(3))
    noise = np.random.default_rng(3).standard_normal((2, 1), dtype=np.float32)
    np.testing.assert_allclose(action, np.clip(np.tanh(outputs) + 0.5 * noise, -1.0, 1.0))
    expected = -0.5 * noise[:, 0] ** 2 - 0.5 * math.log(2 * math.pi) - math.log(0.5)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
    np.testing.assert_array_equal(NoisyMean(0.0, 0.5).mode(outputs), np.tanh(outputs))


def test_actions_are_scaled_to_the_bounds_end_to_end():
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)
    scaled = scale(np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]], np.float32), low, high)
    np.testing.assert_allclose(scaled, [[-2.0, 0.0], [0.0, 7.5], [2.0, 10.0]])


def test_targets_by_hand():
    returns, discounts = torch.tensor([1.0, 2.0]), torch.tensor([0.9, 0.0])
    values, log_probs = torch.tensor([[3.0, 8.0], [4.0, 7.0]]), torch.tensor([-1.0, 5.0])
    # 1 + 0.9 · (min(3, 4) + 0.5 · 1) and, after a termination, only the reward.
    assert soft_targets(returns, discounts, values, log_probs, 0.5).tolist() == pytest.approx([4.15, 2.0])
    assert twin_targets(returns, discounts, values).tolist() == pytest.approx([3.7, 2.0])


def test_smoothing_noise_is_limited_and_actions_stay_in_range():
    actions = torch.tensor([[0.0], [0.0], [0.9]])
    found = smoothed(actions, torch.tensor([[1.0], [-10.0], [10.0]]), spread=0.2, limit=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.2], [-0.5], [1.0]]))


def test_policy_gradients_are_those_of_autograd():
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(7, 4, generator=rng, dtype=torch.float64)
    outputs[0, 2], outputs[1, 3] = 3.0, -25.0  # deviations beyond their limits
    noise = torch.randn(7, 2, generator=rng, dtype=torch.float64)
    weights = torch.randn(7, 2, generator=rng, dtype=torch.float64)
    given = outputs.clone().requires_grad_()
    drawn = squashed_gaussian(given, noise)
    (0.3 * drawn.log_probs - (weights * drawn.actions**2).sum(1)).mean().backward()
    detached = squashed_gaussian(outputs, noise)
    torch.testing.assert_close(
        policy_gradient(outputs, detached, 2 * weights * detached.actions, 0.3), given.grad, rtol=1e-6, atol=1e-9
    )
    means = outputs[:, :2].clone().requires_grad_()
    actions = torch.tanh(means)
    (-(weights * actions**2).sum(1)).mean().backward()
    actions = actions.detach()
    torch.testing.assert_close(td3_gradient(actions, 2 * weights * actions), means.grad)
