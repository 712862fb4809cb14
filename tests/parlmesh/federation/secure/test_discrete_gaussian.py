"""Noise of nodes: exactly distributed, with the requested deviation, and with room in the words of a sum."""

import hashlib

import numpy as np
import pytest
from scipy import stats

from parlmesh.federation.privacy import part_deviation
from parlmesh.federation.secure.discrete_gaussian import DiscreteGaussian
from parlmesh.federation.secure.fixed_point import LEAST_NOISE_MULTIPLIER, MOST_NODES, FixedPoint


def key(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


@pytest.mark.parametrize("bits", [0, 1, 3])
def test_every_whole_number_comes_as_often_as_a_discrete_gaussian_says(bits: int) -> None:
    found = DiscreteGaussian(bits, key(f"chi {bits}")).draw(200_000)
    reach = np.arange(-40 << bits, (40 << bits) + 1)
    chances = np.exp(-0.5 * (reach / 2.0**bits) ** 2)
    expected = len(found) * chances / chances.sum()
    counts = np.bincount(found - reach[0], minlength=len(reach))
    many = expected > 5
    observed = np.append(counts[many], counts[~many].sum())
    wanted = np.append(expected[many], expected[~many].sum())
    assert stats.chisquare(observed, wanted).pvalue > 1e-3


@pytest.mark.parametrize("bits", [12, 25])
def test_wide_noise_is_gaussian_of_its_deviation_down_to_the_lowest_bit(bits: int) -> None:
    found = DiscreteGaussian(bits, key(f"wide {bits}")).draw(100_000)
    assert stats.kstest(found / 2.0**bits, "norm").pvalue > 1e-3
    assert abs(int((found & 1).sum()) - 50_000) < 4 * 158


def test_the_same_key_draws_the_same_noise_and_another_another() -> None:
    first, again, other = (DiscreteGaussian(20, key(name)).draw(1_000) for name in ("a", "a", "b"))
    assert (first == again).all()
    assert (first != other).any()


@pytest.mark.parametrize("nodes", [3, 10, MOST_NODES])
@pytest.mark.parametrize("noise_multiplier", [LEAST_NOISE_MULTIPLIER, 1.0, 1_000.0])
def test_sums_have_room_for_twelve_deviations_and_steps_fine_enough_to_be_exact(
    nodes: int, noise_multiplier: float
) -> None:
    for counted in (1, nodes // 2, nodes):
        deviation = part_deviation(noise_multiplier, 0.7, counted)
        numbers = FixedPoint(nodes, 0.7, 1, deviation)
        assert 8 <= numbers.noise_bits <= 25
        assert numbers.steps * deviation == pytest.approx(2.0**numbers.noise_bits, rel=1e-12)
        farthest = nodes * (0.7 * numbers.steps + 0.5) + 12 * np.sqrt(nodes) * 2.0**numbers.noise_bits
        assert farthest <= 2**31


def test_the_mean_of_noisy_words_is_off_by_the_noise_and_nothing_else() -> None:
    nodes, size, counted = 10, 20_000, 5
    deviation = part_deviation(2.0, 1.0, counted)
    numbers = FixedPoint(nodes, 1.0, 1, deviation)
    rng = np.random.default_rng(3)
    vectors = [rng.uniform(-1e-3, 1e-3, size).astype(np.float32) for _ in range(nodes)]
    total = np.zeros(size + 1, np.uint32)
    for k, vector in enumerate(vectors):
        total += numbers.words(vector, 1, DiscreteGaussian(numbers.noise_bits, key(f"node {k}")).draw(size))
    assert numbers.weight(total, nodes) == nodes
    noise = numbers.mean(total[1:], nodes) - np.mean(vectors, axis=0)
    # All ten added theirs, of which five would have sufficed.
    assert noise.std() == pytest.approx(deviation * np.sqrt(nodes) / nodes, rel=0.02)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(size)
