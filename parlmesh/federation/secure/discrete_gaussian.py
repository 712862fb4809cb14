"""Exact draws from a discrete Gaussian whose deviation is a power of two, from cryptographic bytes.

Canonne, Kamath and Steinke 2020 (arXiv:2004.00010): a discrete Laplace draw is accepted with the probability that makes
it Gaussian. All decisions compare integers, so no floating-point rounding affects the noise.
"""

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from parlmesh.types import Array

from .fixed_point import MOST_NOISE_BITS

KEY_BYTES = 32
_BATCH = 1 << 16
_KEPT_SHARE = 0.4
# A candidate this many deviations out occurs once in 10^26 draws, and would be kept with a probability below e^-1700.
_FARTHEST = 60


class DiscreteGaussian:
    """Draws integers with mean 0 and deviation 2^bits; `key` is from a cryptographic source and has no other use."""

    def __init__(self, bits: int, key: bytes) -> None:
        assert 0 <= bits <= MOST_NOISE_BITS
        assert len(key) == KEY_BYTES
        self._bits = bits
        self._cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def draw(self, size: int) -> Array:
        """`size` draws, int64."""
        found = np.empty(size, np.int64)
        done = 0
        while done < size:
            kept = self._candidates(min(_BATCH, int((size - done) / _KEPT_SHARE) + 16))[: size - done]
            found[done : done + len(kept)] = kept
            done += len(kept)
        return found

    def _candidates(self, tries: int) -> Array:
        """The accepted draws of `tries`; they are independent, so dropping some does not affect the others."""
        bits, deviation = self._bits, 1 << self._bits
        words = self._words(tries)
        low = words & np.uint64(deviation - 1)
        negative = (words >> np.uint64(63)).astype(bool)
        # Discrete Laplace draws of scale 2^bits: ±(low + high · 2^bits), without negative zero.
        chosen = self._with_chance_exp(low, bits)
        low, negative = low[chosen], negative[chosen]
        high = self._geometric(len(low))
        possible = ~(negative & (low == 0) & (high == 0)) & (high < _FARTHEST)
        low, high, negative = low[possible], high[possible], negative[possible]
        size = low + (high << np.uint64(bits))
        away = size.astype(np.int64) - deviation
        kept = self._with_chance_exp((away * away).astype(np.uint64), 2 * bits + 1)
        found: Array = size[kept].astype(np.int64)
        found[negative[kept]] *= -1
        return found

    def _geometric(self, size: int) -> Array:
        """Number of consecutive successes with probability 1/e."""
        found = np.zeros(size, np.uint64)
        going = np.arange(size)
        while len(going):
            going = going[self._with_chance_exp(np.ones(len(going), np.uint64), 0)]
            found[going] += np.uint64(1)
        return found

    def _with_chance_exp(self, numerators: Array, bits: int) -> Array:
        """True with probability exp(-numerator / 2^bits), element by element."""
        found = np.ones(len(numerators), bool)
        wholes = numerators >> np.uint64(bits)
        going = np.flatnonzero(wholes)
        passed = 0
        while len(going):
            luck = self._small_exp(np.ones(len(going), np.uint64), 0)
            found[going[~luck]] = False
            passed += 1
            going = going[luck]
            going = going[wholes[going] > passed]
        going = np.flatnonzero(found)
        found[going] = self._small_exp(numerators[going] & np.uint64((1 << bits) - 1), bits)
        return found

    def _small_exp(self, numerators: Array, bits: int) -> Array:
        """Draws for numerators up to 2^bits: the series of e^-x, by the length of a lucky run (von Neumann)."""
        odd = np.ones(len(numerators), bool)
        going = np.arange(len(numerators))
        length = 1
        while len(going):
            luck = (self._words(len(going)) & np.uint64((1 << bits) - 1)) < numerators[going]
            going = going[luck]
            going = going[self._one_in(length, len(going))]
            odd[going] = ~odd[going]
            length += 1
        return odd

    def _one_in(self, number: int, size: int) -> Array:
        """True with probability 1 / number, element by element."""
        if number == 1:
            return np.ones(size, bool)
        most = np.uint64((1 << 64) // number * number - 1)
        words = self._words(size)
        while (over := words > most).any():
            words[over] = self._words(int(over.sum()))
        found: Array = words % np.uint64(number) == 0
        return found

    def _words(self, size: int) -> Array:
        return np.frombuffer(bytearray(self._cipher.update(bytes(8 * size))), np.uint64)
