"""The weight of each update. The server decides it and limits what a node can claim."""

from collections.abc import Sequence

import numpy as np

from parlmesh.types import Array


def middle(values: Sequence[float]) -> float:
    """The median; of two values the smaller, since the larger may be a liar's."""
    if not len(values):
        return 0.0
    found = np.asarray(values, np.float64)
    return float(found.min() if len(found) == 2 else np.median(found))


def counted_samples(claimed: Sequence[int], *, max_samples: int = 0, cap_factor: float = 0.0) -> Array:
    """The samples that count: at most `max_samples`, and at most `cap_factor` times the median; 0 = no cap.

    The other nodes determine the median, so a node that claims a million samples weighs no more than a large one.
    """
    counted = np.asarray(claimed, np.float64)
    if max_samples:
        counted = np.minimum(counted, float(max_samples))
    if cap_factor:
        counted = np.minimum(counted, max(1.0, cap_factor * middle(counted.tolist())))
    return counted


def staleness_factors(staleness: Sequence[int], exponent: float = 0.5) -> Array:
    """(1 + s)^−a for updates that are s versions old (FedBuff, Nguyen et al. 2022, arXiv:2106.06639)."""
    return np.asarray((1.0 + np.asarray(staleness, np.float64)) ** -exponent)
