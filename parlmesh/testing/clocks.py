"""A clock that moves only when told."""


class HandClock:
    """Replaces time.monotonic or time.time: call it, or pass its `monotonic`."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def __call__(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Moves the time forward."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back, got {seconds}")
        self._now += seconds
