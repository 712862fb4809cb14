"""Tabular Q-learning (Watkins & Dayan 1992), a batch of transitions at a time."""

import numpy as np

from parlmesh.types import Array


def q_learning_update(
    table: Array,
    states: Array,
    actions: Array,
    rewards: Array,
    next_states: Array,
    terminated: Array,
    *,
    step_size: float,
    discount: float,
) -> Array:
    """Updates the table [S, A] in place for B transitions, all [B]; returns the errors target − value [B].

    target   = r + discount · (1 − terminated) · max_a Q(s', a), by the table as it was before the batch
    Q(s, a) += (1 − (1 − step_size)^n) · (mean target of the n visits of (s, a) − Q(s, a))

    A pair seen n times moves as far as n updates towards the mean would move it, whatever their order; a single
    transition gives the textbook update.
    """
    best = table[next_states].max(axis=1)
    targets = rewards + np.where(terminated, 0.0, discount) * best
    errors: Array = targets - table[states, actions]
    pairs, inverse, counts = np.unique(states * table.shape[1] + actions, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=errors) / counts
    steps = (1.0 - (1.0 - step_size) ** counts) * means
    table[pairs // table.shape[1], pairs % table.shape[1]] += steps.astype(table.dtype)
    return errors
