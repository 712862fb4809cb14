"""Aggregates the updates of a round: a rule returns the function from a block [n, b] of updates to one [b].

Sums run in float64 and in the order of the rows, which is by node id: the same updates give the same bits, regardless
of their order of arrival and of how often a round is resumed.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .update_blocks import Updates, blocks, gram, squared_distances
from .update_weights import middle

Combination: TypeAlias = Callable[[Array], Array]

_WEISZFELD_STEPS = 100
_WEISZFELD_CHANGE = 1e-10
# Avoids division by zero when the median falls on an update (Pillutla et al. 2022, arXiv:1912.13445).
_SMOOTHING = 1e-6
_FARTHEST = 1e6


def mean(weights: Sequence[float]) -> Combination:
    """Σ wₖ Δₖ / Σ wₖ (McMahan et al. 2017, arXiv:1602.05629)."""
    return weighted_sum(shares(weights))


def scaled_mean(weights: Sequence[float], scales: Sequence[float]) -> Combination:
    """The mean of updates, each multiplied by its scale."""
    return weighted_sum(shares(weights) * np.asarray(scales, np.float64))


def clipped_mean(weights: Sequence[float], norms: Sequence[float], limit: float = 0.0) -> Combination:
    """The mean of updates clipped to norm `limit`; 0 = the median of their norms."""
    bound = limit or middle(norms)
    return weighted_sum(shares(weights) * clip_factors(norms, bound))


def median() -> Combination:
    """The coordinate-wise median, regardless of weights."""
    return lambda block: np.asarray(np.median(block.astype(np.float64), axis=0))


def trimmed_mean(count: int, trim: int) -> Combination:
    """The coordinate-wise mean without the `trim` smallest and largest values (Yin et al. 2018, arXiv:1803.01498)."""
    check_trim(count, trim)

    def combine(block: Array) -> Array:
        kept = np.sort(block, axis=0)[trim : count - trim]
        return np.asarray(kept.mean(axis=0, dtype=np.float64))

    return combine


def krum(updates: Updates, liars: int, chosen: int = 1) -> Combination:
    """The update nearest to its n − f − 2 neighbours, or the mean of the best few (Blanchard et al. 2017)."""
    check_krum(updates.count, liars, chosen)
    scores = krum_scores(squared_distances(gram(updates)), liars)
    best = np.argsort(scores, kind="stable")[:chosen]
    coefficients = np.zeros(updates.count)
    coefficients[best] = 1.0 / chosen
    return weighted_sum(coefficients)


def geometric_median(updates: Updates, weights: Sequence[float]) -> Combination:
    """The point with the smallest weighted sum of distances, by Weiszfeld's algorithm.

    Every iterate is a mixture z = Σ aₖ Δₖ, and |Δₖ − z|² follows from inner products, so the updates are read once. The
    origin is the update with the smallest such sum, and the unit is the distance from it within which half of the
    weight lies: less than half of the weight can move neither. Extremely distant updates are moved closer along their
    line of sight, which keeps their pull but stops them from drowning the distances between the others.
    """
    products, given = gram(updates), shares(weights)
    apart = np.sqrt(squared_distances(products))
    centre = int(np.argmin(apart @ given))
    scale = _half_within(apart[centre], given)
    if scale == 0.0:
        # Half of the weight lies in one point, which is therefore a median.
        return weighted_sum(np.eye(updates.count)[centre])
    nearer = np.minimum(1.0, _FARTHEST * scale / np.maximum(apart[centre], 1e-300))
    seen = products - products[:, [centre]] - products[[centre], :] + products[centre, centre]
    seen *= nearer[:, None] * nearer[None, :]
    mixture = given / np.maximum(apart[centre], scale)
    mixture /= mixture.sum()
    for _ in range(_WEISZFELD_STEPS):
        squares = np.diag(seen) - 2.0 * (seen @ mixture) + mixture @ seen @ mixture
        distances = np.sqrt(np.maximum(squares, 0.0))
        pulled = given / np.maximum(distances, _SMOOTHING * scale)
        pulled /= pulled.sum()
        change = float(np.abs(pulled - mixture).max())
        mixture = pulled
        if change < _WEISZFELD_CHANGE:
            break
    coefficients = mixture * nearer
    coefficients[centre] += 1.0 - float(coefficients.sum())
    return weighted_sum(coefficients)


def _half_within(distances: Array, weights: Array) -> float:
    """The smallest distance within which at least half of the weight lies."""
    order = np.argsort(distances, kind="stable")
    reached = np.cumsum(weights[order]) >= 0.5 - 1e-12
    return float(distances[order][int(np.argmax(reached))])


def weighted_sum(coefficients: Array) -> Combination:
    """Σ cₖ Δₖ, row by row."""

    def combine(block: Array) -> Array:
        total, part = np.zeros(block.shape[1]), np.empty(block.shape[1])
        for coefficient, row in zip(coefficients, block, strict=True):
            # Skip unchosen updates: 0 · inf would be NaN.
            if coefficient:
                np.multiply(row, coefficient, out=part, casting="unsafe", dtype=np.float64)
                total += part
        return total

    return combine


def shares(weights: Sequence[float]) -> Array:
    """The weights scaled to sum to 1; raises InvalidInput unless all are > 0 and finite."""
    found = np.asarray(weights, np.float64)
    if not len(found):
        raise InvalidInput("there are no updates to aggregate")
    if not (np.isfinite(found).all() and (found > 0.0).all()):
        raise InvalidInput(f"node weights must be finite and > 0, got {found.tolist()}", reason="NODE_WEIGHT")
    return np.asarray(found / found.sum())


def clip_factors(norms: Sequence[float], limit: float) -> Array:
    """The factor that limits each update's norm to `limit`; 1 below it."""
    found = np.asarray(norms, np.float64)
    return np.minimum(1.0, limit / np.maximum(found, 1e-300))


def krum_scores(distances: Array, liars: int) -> Array:
    """Sum of each update's n − f − 2 smallest squared distances to others."""
    count = len(distances)
    neighbours = np.sort(distances + np.diag(np.full(count, np.inf)), axis=1)
    return np.asarray(neighbours[:, : count - liars - 2].sum(axis=1))


def joint_update(updates: Updates, combination: Combination) -> Array:
    """The whole aggregated update, float64 [size]; for callers that can hold it in memory."""
    joint = np.empty(updates.size)
    for start, stop, block in blocks(updates):
        joint[start:stop] = combination(block)
    return joint


def check_trim(count: int, trim: int) -> None:
    """Raises InvalidInput when nothing would be left."""
    if trim < 0 or count <= 2 * trim:
        raise InvalidInput(
            f"trimmed mean of {count} updates cannot drop {trim} on each side;"
            f" it needs at least {2 * trim + 1} updates",
            reason="IMPOSSIBLE_RULE",
        )


def check_krum(count: int, liars: int, chosen: int = 1) -> None:
    """Raises InvalidInput when there are too few updates to outvote that many liars."""
    if liars < 0 or count < 2 * liars + 3:
        raise InvalidInput(
            f"Krum against {liars} liars needs at least {2 * liars + 3} updates, got {count}", reason="IMPOSSIBLE_RULE"
        )
    if not 1 <= chosen <= count - liars:
        raise InvalidInput(
            f"multi-Krum of {count} updates and {liars} liars can choose 1 to {count - liars}, got {chosen}",
            reason="IMPOSSIBLE_RULE",
        )
