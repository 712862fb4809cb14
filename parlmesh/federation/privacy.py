"""Differential privacy of rounds: clipping, Gaussian noise, and an accountant for the privacy spent.

Neighbouring federations have the same nodes, one of which has different data (replace-one). Two updates clipped to C
are at most 2 C apart, which is the sensitivity of a node's update, and of a round's sum, in both modes. There is no
amplification by sampling: rounds choose a fixed number of nodes, not each node by an independent coin.

Releases with noise of deviation z C compose to one Gaussian mechanism with μ = 2 √T / z, exactly (Dong, Roth and Su
2022, arXiv:1905.02383); its δ(ε) has a closed form (Balle and Wang 2018, arXiv:1805.06530).

Noise that nodes add in parts is discrete: a sum of h discrete Gaussians, each of z C / √h, which differs from one
discrete Gaussian by less than 10 n exp(-π² σ²) (Kairouz et al. 2021, arXiv:2102.06387). That one equals a Gaussian of
variance σ² - s² whose values are each rounded randomly to integers around them with a deviation of s (Peikert 2010):
all probabilities agree up to a factor of 1 ± 6 exp(-2 π² s²). Both terms are 0 in floating point for s = 4 and for the
σ of at least 256 steps that a node's noise has, for any realistic number of values and releases. Rounding is
post-processing and reveals nothing, so μ is that of the Gaussian, 0.012 % more than without parts.
"""

import math
from functools import lru_cache

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .secure.fixed_point import LEAST_NOISE_BITS

SENSITIVITY = 2.0
"""Sensitivity of a clipped update, in units of the clip norm."""

_BISECTIONS = 60
_STRETCH = 1 << 16
_ROUNDING_STEPS = 4.0
_ROOT_TWO = math.sqrt(2.0)


def clip(vector: Array, limit: float) -> Array:
    """The vector, scaled down to norm `limit` if longer; otherwise the same object."""
    norm = norm_of(vector)
    if norm <= limit:
        return vector
    shorter = vector * np.float32(limit / norm)
    # Rounding may leave it slightly too long, which would break the guarantee.
    while norm_of(shorter) > limit:
        shorter *= np.float32(1.0 - 1e-6)
    return shorter


def norm_of(vector: Array) -> float:
    """The norm in float64, in chunks: float32 sums of long vectors are too inexact for a guarantee."""
    total = 0.0
    for start in range(0, len(vector), _STRETCH):
        wide = vector[start : start + _STRETCH].astype(np.float64)
        total += float(np.dot(wide, wide))
    return math.sqrt(total)


def mean_noise_deviation(noise_multiplier: float, clip_norm: float, updates: int) -> float:
    """Standard deviation of the noise on the mean of n clipped updates of equal weight: z C / n."""
    return noise_multiplier * clip_norm / updates


def noise_stream(seed: bytes) -> np.random.Generator:
    """Noise that only the holder of the seed can reproduce; the seed is >= 16 bytes from a cryptographic source."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(seed[:16], "little")))


def part_deviation(noise_multiplier: float, clip_norm: float, counted: int) -> float:
    """Standard deviation of each node's part of the noise when `counted` nodes must suffice: z C / √h."""
    return noise_multiplier * clip_norm / math.sqrt(counted)


def epsilon(noise_multiplier: float, releases: int, delta: float, *, in_parts: bool = False) -> float:
    """ε at δ after this many releases with noise of z times the clip norm; infinite without noise.

    `in_parts`: the noise is a sum of discrete parts.
    """
    if releases == 0:
        return 0.0
    if noise_multiplier <= 0.0:
        return math.inf
    return gaussian_epsilon(math.sqrt(releases) * release_mu(noise_multiplier, in_parts=in_parts), delta)


def release_mu(noise_multiplier: float, *, in_parts: bool = False) -> float:
    """μ of one release; the squares of several add up."""
    mu = SENSITIVITY / noise_multiplier
    return mu / math.sqrt(1.0 - (_ROUNDING_STEPS / 2.0**LEAST_NOISE_BITS) ** 2) if in_parts else mu


@lru_cache(maxsize=16)
def releases_within(noise_multiplier: float, delta: float, budget: float, most: int, *, in_parts: bool = False) -> int:
    """Number of releases that stay within ε = `budget`, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(noise_multiplier, middle, delta, in_parts=in_parts) <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def check_budget(noise_multiplier: float, delta: float, budget: float, *, in_parts: bool = False) -> None:
    """Raises InvalidInput when not even one release fits the budget."""
    first = epsilon(noise_multiplier, 1, delta, in_parts=in_parts)
    if first <= budget:
        return
    low, high = noise_multiplier, noise_multiplier
    while epsilon(high, 1, delta, in_parts=in_parts) > budget:
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        too_much = epsilon(middle, 1, delta, in_parts=in_parts) > budget
        low, high = (middle, high) if too_much else (low, middle)
    raise InvalidInput(
        f"the first round would spend epsilon {first:.4g} of a budget of {budget:g};"
        f" noise_multiplier must be at least {high:.4g}, got {noise_multiplier:g}",
        reason="PRIVACY",
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε at δ of a Gaussian mechanism with sensitivity / deviation = μ; never underestimated."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(high, mu) > delta:
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if gaussian_delta(middle, mu) > delta else (low, middle)
    return high


def gaussian_delta(epsilon_: float, mu: float) -> float:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), computed as φ(b) (R(b) − R(a)), which neither over- nor underflows.

    R is Mills' ratio Φ(−x)/φ(x), b = ε/μ − μ/2 and a = ε/μ + μ/2.
    """
    a, b = epsilon_ / mu + mu / 2.0, epsilon_ / mu - mu / 2.0
    density = math.exp(-0.5 * b * b) / math.sqrt(2.0 * math.pi)
    if b > 0.0:
        return density * (_mills(b) - _mills(a))
    return 0.5 * math.erfc(b / _ROOT_TWO) - density * _mills(a)


def _mills(x: float) -> float:
    """Φ(−x) / φ(x) for x ≥ 0."""
    if x < 10.0:
        return 0.5 * math.erfc(x / _ROOT_TWO) * math.sqrt(2.0 * math.pi) * math.exp(0.5 * x * x)
    # Laplace's continued fraction, evaluated from its end.
    tail = x
    for step in range(40, 0, -1):
        tail = x + step / tail
    return 1.0 / tail
