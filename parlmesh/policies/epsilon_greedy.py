"""Chooses the action with the best value or, for a share epsilon of steps, any allowed one."""

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .distributions import MASKED


class EpsilonGreedy:
    """Epsilon is part of a policy version, so that the learner decides how much the fleet explores."""

    def __init__(self, epsilon: float) -> None:
        if not 0.0 <= epsilon <= 1.0:
            raise InvalidInput(f"policy.epsilon must be in 0..1, got {epsilon:g}", reason="POLICY_SPEC")
        self._epsilon = epsilon

    def sample(self, outputs: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Actions [B] and the log-probabilities [B] with which they are chosen, from values [B, A]."""
        best = outputs.argmax(axis=1)
        allowed = outputs != MASKED
        exploring = rng.random(len(outputs), dtype=np.float32) < self._epsilon
        # The argmax of independent random numbers picks each allowed action with equal probability.
        lots = np.where(allowed, rng.random(outputs.shape, dtype=np.float32), np.float32(-1.0))
        action = np.where(exploring, lots.argmax(axis=1), best)
        # If nothing is allowed, the episode has ended and the choice does not matter.
        chance = self._epsilon / np.maximum(allowed.sum(axis=1), 1)
        chance += (action == best) * (1.0 - self._epsilon)
        return action, np.log(chance).astype(np.float32)

    def mode(self, outputs: Array) -> Array:
        """The first of the best."""
        action: Array = outputs.argmax(axis=1)
        return action
