"""Deep Q-learning (Mnih et al. 2015) in numpy: double targets (van Hasselt et al. 2016, arXiv:1509.06461), the dueling
head (Wang et al. 2016, arXiv:1511.06581) and the weighted Huber loss, each with its gradient if it has one.

`dqn_torch` is the same loss for networks that need autograd; a test compares the two.
"""

from typing import NamedTuple

import numpy as np

from parlmesh.types import Array


class QTerms(NamedTuple):
    """Means over a minibatch."""

    loss: float
    # Mean value of the taken actions.
    value: float
    # |target − value|, without importance weights.
    error: float


def double_q_targets(
    returns: Array, discounts: Array, next_online: Array, next_target: Array, next_masks: Array | None = None
) -> Array:
    """returns + discounts · Q_target(s', argmax_a Q_online(s', a)) [B]; values are [B, A], masks true where allowed.

    With next_online = next_target these are the targets of plain DQN. Where no action is allowed, as after an end, the
    discount is 0 and the choice does not matter.
    """
    ranked = next_online if next_masks is None else np.where(next_masks, next_online, -np.inf)
    chosen = ranked.argmax(axis=1)
    targets: Array = returns + discounts * next_target[np.arange(len(chosen)), chosen]
    return targets


def dueling(outputs: Array) -> Array:
    """Q [B, A] = V + advantage − mean advantage, from outputs [B, A + 1] whose last column is V."""
    advantages = outputs[:, :-1]
    values: Array = advantages + (outputs[:, -1:] - advantages.mean(axis=1, keepdims=True))
    return values


def dueling_gradient(values_gradient: Array) -> Array:
    """d loss / d outputs [B, A + 1] for d loss / d Q [B, A]."""
    total = values_gradient.sum(axis=1, keepdims=True)
    return np.concatenate((values_gradient - total / values_gradient.shape[1], total), axis=1)


def huber_gradient(
    values: Array, actions: Array, targets: Array, weights: Array | None, *, threshold: float
) -> tuple[Array, Array, QTerms]:
    """d loss / d values [B, A], the errors target − value [B] and the terms, for values [B, A] and all else [B].

    loss = mean(weight · huber(target − value of the action)),
    huber(e) = ½ e² up to the threshold k, k (|e| − ½ k) beyond.
    """
    rows = np.arange(len(actions))
    taken = values[rows, actions]
    errors = targets - taken
    sizes = np.abs(errors)
    clipped = np.minimum(sizes, threshold)
    losses = clipped * (sizes - 0.5 * clipped)
    flow = np.copysign(clipped, errors)
    if weights is not None:
        losses = losses * weights
        flow *= weights
    share = 1.0 / len(actions)
    gradient = np.zeros_like(values)
    gradient[rows, actions] = flow * -share
    # Sums, because np.mean takes longer than everything else for such a small minibatch.
    terms = QTerms(*(float(np.add.reduce(column)) * share for column in (losses, taken, sizes)))
    return gradient, errors, terms
