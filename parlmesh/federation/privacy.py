"""Differential privacy of rounds: clipping, Gaussian noise, and an accountant that says what has been given away.

A neighbour is a federation with one node more or less. The accountant takes every node to be in every round:
rounds here choose a number of nodes, not each node by a coin of its own, so nothing is gained by sampling.
"""

import math

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array


def clip(vector: Array, limit: float) -> Array:
    """The vector, shortened to `limit` when it is longer; the same object when it is not."""
    norm = math.sqrt(float(np.dot(vector, vector)))
    if norm <= limit:
        return vector
    shorter = vector * np.float32(limit / norm)
    # Rounding may leave it a bit too long; the guarantee must not hang on that.
    while math.sqrt(float(np.dot(shorter, shorter))) > limit:
        shorter *= np.float32(1.0 - 1e-6)
    return shorter


def mean_noise_deviation(noise_multiplier: float, clip_norm: float, updates: int) -> float:
    """Deviation of the noise on the mean of n clipped updates of equal weight: z C / n."""
    return noise_multiplier * clip_norm / updates


def noise_stream(secret: bytes, round_number: int) -> np.random.Generator:
    """Noise that only the holder of the secret can repeat: a resumed round adds the same."""
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([int.from_bytes(secret, "little"), round_number]))
    )


def epsilon(noise_multiplier: float, rounds: int, delta: float) -> float:
    """ε of so many rounds at δ, by Rényi differential privacy (dp-accounting); infinite without noise."""
    if rounds == 0:
        return 0.0
    if noise_multiplier <= 0.0:
        return math.inf
    # Slow to import and needed by private federations only.
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError as error:
        raise InvalidInput(
            "privacy needs the package dp-accounting: pip install parlmesh[federation]", reason="PRIVACY"
        ) from error
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier), rounds)
    return float(accountant.get_epsilon(delta))


def rounds_within(noise_multiplier: float, delta: float, budget: float, most: int) -> int:
    """How many rounds stay within ε = `budget`, at most `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if epsilon(noise_multiplier, middle, delta) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
