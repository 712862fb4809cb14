"""How long to wait before the next retry."""

import random


class Backoff:
    """Exponential waits with full jitter: uniform between 0 and a ceiling that grows up to `limit`."""

    def __init__(
        self,
        first: float = 0.1,
        factor: float = 2.0,
        limit: float = 5.0,
        rng: random.Random | None = None,
    ) -> None:
        self._first = first
        self._factor = factor
        self._limit = limit
        self._rng = rng if rng is not None else random.SystemRandom()
        self._ceiling = min(first, limit)

    def next(self) -> float:
        """Seconds to wait now; the ceiling of the following wait is higher."""
        seconds = self._rng.uniform(0.0, self._ceiling)
        self._ceiling = min(self._ceiling * self._factor, self._limit)
        return seconds

    def reset(self) -> None:
        """Called after a success."""
        self._ceiling = min(self._first, self._limit)
