"""What each update counts: given by the server, from sample counts that it caps."""

from collections.abc import Sequence

import numpy as np

from parlmesh.types import Array


def counted_samples(claimed: Sequence[int], *, max_samples: int = 0, cap_factor: float = 0.0) -> Array:
    """The samples that the server believes: at most `max_samples` and `cap_factor` times the median; 0 = no cap.

    The median is what half of the nodes agree to, so a node that claims a million weighs as much as a large one.
    """
    counted = np.asarray(claimed, np.float64)
    if max_samples:
        counted = np.minimum(counted, float(max_samples))
    if cap_factor:
        counted = np.minimum(counted, max(1.0, cap_factor * float(np.median(counted))))
    return counted


def staleness_factors(staleness: Sequence[int], exponent: float = 0.5) -> Array:
    """(1 + s)^−a for updates that are s versions old (FedBuff, Nguyen et al. 2022, arXiv:2106.06639)."""
    return np.asarray((1.0 + np.asarray(staleness, np.float64)) ** -exponent)


def norm_outliers(norms: Sequence[float], factor: float, least: int = 4) -> Array:
    """Which updates are longer than `factor` times the median norm; with fewer than `least` nobody is judged."""
    found = np.asarray(norms, np.float64)
    if not factor or len(found) < least:
        return np.zeros(len(found), np.bool_)
    # Nodes that all stand still must not make the first that moves an outlier.
    return np.asarray(found > factor * max(float(np.median(found)), 1e-12))
