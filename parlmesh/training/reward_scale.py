"""The scale of rewards: fixed, or one that gives their discounted sums a deviation of about 1."""

from collections.abc import Mapping

import numpy as np

from parlmesh.policies.normaliser import Normaliser
from parlmesh.types import EARNED, REWARD, TERMINATED, TRUNCATED, VALID, Array

from .settings.ppo import PpoConfig

_NAME = "rewards"


class RewardScale:
    """Learns only the deviation: a shifted mean would change what episodes of different length are worth."""

    def __init__(self, factor: float, discount: float, *, normalise: bool, clip: float | None = None) -> None:
        self._factor = factor
        self._clip = clip
        self._discount = discount
        self._sums = Normaliser(1, name=_NAME) if normalise else None

    @classmethod
    def of(cls, config: PpoConfig) -> "RewardScale | None":
        """The configured scaling; None if rewards are used unscaled."""
        if not config.normalise_rewards and config.reward_scale == 1.0 and config.reward_clip is None:
            return None
        return cls(config.reward_scale, config.discount, normalise=config.normalise_rewards, clip=config.reward_clip)

    def add(self, columns: Mapping[str, Array]) -> None:
        """Adds the rewards of a batch [T, E]; sums continue from its episodes' earlier rewards."""
        if self._sums is not None:
            ended = columns[TERMINATED] | columns[TRUNCATED]
            sums = discounted_sums(columns[REWARD], ended, self._discount, columns.get(EARNED))
            self._sums.add(sums[columns[VALID]][:, None])

    def __call__(self, rewards: Array) -> Array:
        """Scaled rewards, float32."""
        learnt = float(self._sums.weights()[f"{_NAME}.scale"][0]) if self._sums is not None else 1.0
        scaled = np.asarray(rewards * np.float32(self._factor * learnt), np.float32)
        return scaled if self._clip is None else np.clip(scaled, -self._clip, self._clip)

    def tensors(self) -> dict[str, Array]:
        """Everything that decides the next scale."""
        return self._sums.tensors() if self._sums is not None else {}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        if self._sums is not None:
            self._sums.restore(tensors)


def discounted_sums(rewards: Array, ended: Array, discount: float, before: Array | None = None) -> Array:
    """Rewards so far in each episode, older ones discounted, float64 [T, E]; the sums restart from 0 after an end.

    `before` [E] is the sum at the step before the first, 0 where an episode ended there.
    """
    sums = np.array(rewards, np.float64)
    if before is not None and len(sums):
        sums[0] += discount * before
    for step in range(1, len(sums)):
        sums[step] += np.where(ended[step - 1], 0.0, discount * sums[step - 1])
    return sums
