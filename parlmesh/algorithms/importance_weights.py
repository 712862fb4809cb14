"""Weights of steps by how much likelier the policy has become to take them since they were taken."""

import math

import numpy as np

from parlmesh.types import Array

# A single step that has become much likelier must not outweigh the rest of its batch.
LARGEST_LOG_WEIGHT = np.float32(math.log(4.0))


def importance_weights(log_ratios: Array, valid: Array) -> Array:
    """Weights of steps [T, E], 1 on average over the valid ones, from log(probability now / probability then)."""
    ratios = np.exp(np.minimum(log_ratios, LARGEST_LOG_WEIGHT))
    weights: Array = ratios / (ratios[valid].mean() + 1e-8)
    return weights
