"""How often experience may be used: the ratio of samples to inserts, as in Reverb (Cassirer et al. 2021)."""

from collections.abc import Mapping

import numpy as np

from parlmesh.types import Array


class RateLimiter:
    """error = samples_per_insert · (inserts − min_size) − samples

    Nothing is sampled before `min_size` inserts, and never more than keeps the error at 0 or above: each insert pays
    for `samples_per_insert` samples, those before `min_size` for none.
    """

    def __init__(self, samples_per_insert: float, min_size: int) -> None:
        self._ratio = samples_per_insert
        self._min_size = min_size
        self._inserts = 0
        self._samples = 0

    @property
    def allowed(self) -> int:
        """Samples that may be taken now."""
        return max(0, int(self._ratio * (self._inserts - self._min_size)) - self._samples)

    @property
    def ratio(self) -> float:
        """Samples per insert since sampling began."""
        paying = self._inserts - self._min_size
        return self._samples / paying if paying > 0 else 0.0

    def insert(self, count: int) -> None:
        """Counts inserts."""
        self._inserts += count

    def sample(self, count: int) -> None:
        """Counts samples, which must have been allowed."""
        assert count <= self.allowed, f"{count} samples were taken, {self.allowed} allowed"
        self._samples += count

    def tensors(self) -> dict[str, Array]:
        """The counts."""
        return {"limiter": np.array([self._inserts, self._samples], np.int64)}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """The inverse of `tensors`."""
        self._inserts, self._samples = (int(count) for count in tensors["limiter"])
