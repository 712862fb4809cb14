"""Measures the share of the last seconds that was spent waiting."""

import threading
from collections import deque

_WINDOW_SECONDS = 5.0


class Waiting:
    """Collects spans of waiting and working; safe to use from several threads."""

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float, float]] = deque()
        self._lock = threading.Lock()

    def add(self, now: float, waited_seconds: float, worked_seconds: float) -> float:
        """Adds a span that ends now; returns the new ratio."""
        with self._lock:
            self._spans.append((now, waited_seconds, worked_seconds))
            # Always keeps one span: a long one may be longer than the window.
            while len(self._spans) > 1 and now - self._spans[0][0] > _WINDOW_SECONDS:
                self._spans.popleft()
        return self.ratio()

    def ratio(self) -> float:
        """Waiting time over total time, 0 to 1; 0 before the first span."""
        with self._lock:
            waited = sum(span[1] for span in self._spans)
            total = waited + sum(span[2] for span in self._spans)
        return waited / total if total > 0.0 else 0.0
