"""A link's queue and losses: M/M/1 with a bounded buffer, and retransmitted frames."""

import numpy as np

from parlmesh.types import Array

# At 1 the formulas are 0/0; this close to it they are as good as their limit.
_NEAR_ONE = 1e-4


def overflow(utilisation: Array, buffer: int) -> Array:
    """Probability that a packet finds the buffer full: (1-ρ)ρ^K / (1-ρ^(K+1)), and 1/(K+1) at ρ = 1."""
    rho = _apart(utilisation)
    found: Array = (1.0 - rho) * rho**buffer / (1.0 - rho ** (buffer + 1))
    return found


def waiting(utilisation: Array, buffer: int) -> Array:
    """Mean packets ahead of one that finds room, which is its wait in transmission times."""
    rho = _apart(utilisation)
    power = rho ** (buffer + 1)
    held = rho / (1.0 - rho) - (buffer + 1) * power / (1.0 - power)
    # The mean over all arrivals includes the full buffer, in which no arriving packet waits.
    full = overflow(utilisation, buffer)
    found: Array = np.maximum((held - buffer * full) / (1.0 - full), 0.0)
    return found


def undelivered(etx: Array, retries: int) -> Array:
    """Probability that all tries fail."""
    found: Array = (1.0 - 1.0 / etx) ** (retries + 1)
    return found


def _apart(utilisation: Array) -> Array:
    return np.where(np.abs(utilisation - 1.0) < _NEAR_ONE, 1.0 - _NEAR_ONE, utilisation)
