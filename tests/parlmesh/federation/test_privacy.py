import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from parlmesh.federation.privacy import (
    SENSITIVITY,
    clip,
    epsilon,
    gaussian_epsilon,
    mean_noise_deviation,
    noise_stream,
    releases_within,
)
from parlmesh.federation.secure.fixed_point import LEAST_NOISE_BITS


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(1e-3, 1e6))
def test_clipped_vectors_are_never_longer_and_short_ones_untouched(seed, limit, scale):
    vector = (scale * np.random.default_rng(seed).standard_normal(50)).astype(np.float32)
    found = clip(vector, limit)
    assert np.linalg.norm(found.astype(np.float64)) <= limit * (1.0 + 1e-12)
    if np.linalg.norm(vector.astype(np.float64)) <= limit * (1.0 - 1e-12):
        assert found is vector


def dominating_epsilon(noise, releases, delta, step=2e-4):
    """An independent accountant: the privacy loss of one release on a grid, convolved by FFT, δ(ε) summed up.

    The two outputs furthest apart are N(0, z²) and N(2, z²); a loss stands in the middle of its cell.
    """
    mu = 2.0 / noise
    # One release's loss is normal with mean μ²/2 and deviation μ; twelve deviations of the sum fit on the grid.
    reach = 12.0 * mu * math.sqrt(releases) + 0.5 * releases * mu * mu
    step = max(step, 4.0 * reach / (1 << 21))
    size = 1 << math.ceil(math.log2(2.0 * reach / step))
    edges = (np.arange(size + 1) - size // 2) * step
    cumulative = ndtr((edges - 0.5 * mu * mu) / mu)
    masses = np.diff(cumulative)
    composed = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(masses)) ** releases, size)
    losses = np.fft.ifftshift(np.arange(size) - size // 2) * step
    losses = losses + 0.5 * releases * step

    def delta_at(value):
        above = losses > value
        return float(np.sum(np.maximum(composed[above], 0.0) * -np.expm1(value - losses[above])))

    low, high = 0.0, reach
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize(
    ("noise", "releases", "delta"),
    [
        (1.0, 1, 1e-5),
        (1.0, 10, 1e-5),
        (2.0, 10, 1e-6),
        (5.0, 100, 1e-5),
        (8.0, 1, 1e-5),
        (20.0, 50, 1e-3),
        (0.5, 3, 1e-5),
    ],
)
def test_the_accountant_is_within_a_hundredth_of_an_independent_one(noise, releases, delta):
    assert epsilon(noise, releases, delta) == pytest.approx(dominating_epsilon(noise, releases, delta), rel=0.01)


def test_epsilon_grows_with_releases_and_falls_with_noise():
    over_releases = [epsilon(2.0, releases, 1e-5) for releases in (0, 1, 2, 5, 20)]
    assert over_releases[0] == 0.0
    assert over_releases == sorted(set(over_releases))
    assert epsilon(4.0, 5, 1e-5) < epsilon(2.0, 5, 1e-5)
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(0.01, 1000, 1e-12) < math.inf


def test_a_budget_is_used_up_and_not_passed():
    within = releases_within(8.0, 1e-5, 3.0, 1000)
    assert epsilon(8.0, within, 1e-5) <= 3.0 < epsilon(8.0, within + 1, 1e-5)


def test_noise_has_the_deviation_it_should_and_repeats_only_with_its_seed():
    deviation = mean_noise_deviation(1.5, 2.0, 10)
    assert deviation == pytest.approx(0.3)
    seed, other = bytes(range(32)), bytes(range(1, 33))
    drawn = deviation * noise_stream(seed).standard_normal(200_000)
    assert drawn.std() == pytest.approx(deviation, rel=0.01)
    assert np.array_equal(drawn, deviation * noise_stream(seed).standard_normal(200_000))
    assert not np.array_equal(noise_stream(other).standard_normal(9), noise_stream(seed).standard_normal(9))


def test_the_mean_s_noise_hides_one_node_with_other_data():
    """Replace-one: the sums of two neighbouring rounds are up to 2 C apart, and the noise is made for that."""
    clip_norm, multiplier, count = 1.5, 0.7, 4
    rng = np.random.default_rng(0)
    others = [clip(rng.standard_normal(8), clip_norm) for _ in range(count - 1)]
    worst = clip(1e6 * np.ones(8), clip_norm)
    apart = np.linalg.norm(np.mean([*others, worst], axis=0) - np.mean([*others, -worst], axis=0))
    assert apart == pytest.approx(SENSITIVITY * clip_norm / count)
    # The report is what that distance and the true noise give.
    mu = float(apart) / mean_noise_deviation(multiplier, clip_norm, count)
    assert epsilon(multiplier, 1, 1e-5) == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-4)


def delta_of_parts(loss_epsilon, distance, bits, counted, releases, step):
    """δ(ε) of sums of whole noise from their chances alone: the noise of one node, convolved with itself.

    Losses are rounded up to a grid, so that the result is never too small.
    """
    reach = np.arange(-12 << bits, (12 << bits) + 1)
    one = np.exp(-0.5 * (reach / 2.0**bits) ** 2)
    chances = np.ones(1)
    for _ in range(counted):
        chances = np.convolve(chances, one / one.sum())
    here, there = chances[distance:], chances[:-distance]
    seen = (here > 1e-200) & (there > 1e-200)
    lost = float(chances[:distance].sum() + here[~seen].sum())
    losses = np.ceil(np.log(here[seen] / there[seen]) / step).astype(int)
    width = int(np.abs(losses).max())
    size = 1 << math.ceil(math.log2(2 * releases * width + 2))
    masses = np.bincount(losses % size, weights=here[seen], minlength=size)
    composed = np.maximum(np.fft.irfft(np.fft.rfft(masses) ** releases, size), 0.0)
    grid = np.fft.fftfreq(size, 1.0 / size) * step
    above = grid > loss_epsilon
    return releases * lost + float(np.sum(composed[above] * -np.expm1(loss_epsilon - grid[above])))


@pytest.mark.parametrize(
    ("distance", "counted", "releases", "step"), [(400, 5, 1, 1e-4), (400, 5, 20, 1e-3), (800, 3, 4, 1e-4)]
)
def test_epsilon_of_noise_in_parts_is_that_of_the_chances_of_the_sum_within_a_percent(
    distance, counted, releases, step
):
    bits, delta = LEAST_NOISE_BITS, 1e-5
    # Two updates are 2 C apart, and the noise of all counted nodes has deviation z C.
    noise = 2.0 * math.sqrt(counted) * 2.0**bits / distance
    told = epsilon(noise, releases, delta, in_parts=True)
    # Rounding losses up makes the result too large by this at most.
    rounded = releases * step
    assert delta_of_parts(told + rounded, distance, bits, counted, releases, step) <= delta
    assert delta_of_parts(0.99 * told, distance, bits, counted, releases, step) > delta
    assert delta_of_parts(told - 2.0 * rounded - 0.001 * told, distance, bits, counted, releases, step) > delta


def test_noise_in_parts_has_its_own_number_of_releases_within_a_budget():
    found = releases_within(4.0, 1e-5, 10.0, 10_000, in_parts=True)
    assert epsilon(4.0, found, 1e-5, in_parts=True) <= 10.0 < epsilon(4.0, found + 1, 1e-5, in_parts=True)
    assert found <= releases_within(4.0, 1e-5, 10.0, 10_000)
