import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.federation.privacy import clip, epsilon, mean_noise_deviation, noise_stream, rounds_within


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(1e-3, 1e6))
def test_clipped_vectors_are_never_longer_and_short_ones_untouched(seed, limit, scale):
    vector = (scale * np.random.default_rng(seed).standard_normal(50)).astype(np.float32)
    found = clip(vector, limit)
    assert math.sqrt(float(np.dot(found, found))) <= limit
    if math.sqrt(float(np.dot(vector, vector))) <= limit:
        assert found is vector


def gaussian_delta(epsilon_, noise, rounds):
    """Exact δ(ε) of composed Gaussian mechanisms (Balle & Wang 2018)."""
    mu = math.sqrt(rounds) / noise

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2.0))

    return phi(mu / 2 - epsilon_ / mu) - math.exp(epsilon_) * phi(-mu / 2 - epsilon_ / mu)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 10), (5.0, 100)])
def test_the_accountant_promises_no_more_than_the_exact_guarantee(noise, rounds):
    found = epsilon(noise, rounds, 1e-5)
    assert gaussian_delta(found, noise, rounds) <= 1e-5
    # And not much less: the conversion from Rényi divergences costs a few per cent.
    assert gaussian_delta(0.85 * found, noise, rounds) > 1e-5


def test_epsilon_grows_with_rounds_and_falls_with_noise():
    over_rounds = [epsilon(2.0, rounds, 1e-5) for rounds in (0, 1, 2, 5, 20)]
    assert over_rounds[0] == 0.0
    assert over_rounds == sorted(set(over_rounds))
    assert epsilon(4.0, 5, 1e-5) < epsilon(2.0, 5, 1e-5)
    assert epsilon(0.0, 1, 1e-5) == math.inf


def test_a_budget_is_used_up_and_not_passed():
    within = rounds_within(4.0, 1e-5, 3.0, 1000)
    assert epsilon(4.0, within, 1e-5) <= 3.0 < epsilon(4.0, within + 1, 1e-5)


def test_noise_has_the_deviation_it_should_and_repeats_only_with_its_secret():
    deviation = mean_noise_deviation(1.5, 2.0, 10)
    assert deviation == pytest.approx(0.3)
    drawn = deviation * noise_stream(b"secret", 3).standard_normal(200_000)
    assert drawn.std() == pytest.approx(deviation, rel=0.01)
    assert np.array_equal(drawn, deviation * noise_stream(b"secret", 3).standard_normal(200_000))
    assert not np.array_equal(
        noise_stream(b"secret", 4).standard_normal(9), noise_stream(b"secret", 3).standard_normal(9)
    )
    assert not np.array_equal(
        noise_stream(b"other", 3).standard_normal(9), noise_stream(b"secret", 3).standard_normal(9)
    )
