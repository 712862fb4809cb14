"""When a whole study is stopped: its first trials all fail, so they share a cause."""

from parlmesh.errors import FailedPrecondition

# So many, before any succeeds.
FAILURES_AT_START = 5


class Prospects:
    """Whether trials of a study have succeeded since it was started."""

    def __init__(self) -> None:
        self._failures = self._successes = 0
        self._last_failure = ""

    def succeeded(self) -> None:
        """A trial was finished or pruned."""
        self._successes += 1

    def failed(self, why: str) -> None:
        """A trial failed by its own settings."""
        self._failures += 1
        self._last_failure = why

    def check(self) -> None:
        """Raises FailedPrecondition if the study is hopeless."""
        if self._failures >= FAILURES_AT_START and not self._successes:
            raise FailedPrecondition(
                f"{self._failures} trials failed and none succeeded; the last: {self._last_failure}",
                reason="TRIALS_FAIL",
            )
