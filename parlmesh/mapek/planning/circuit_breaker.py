"""A circuit breaker: stops an action that fails everywhere for some time, then probes it."""

from dataclasses import dataclass

from ..config import BreakerConfig


@dataclass(slots=True)
class Breaker:
    """Closed, or open until `open_until` and then half open for a few probes. Has no clock."""

    config: BreakerConfig
    failures: int = 0
    """Consecutive failures."""
    open_until: float = 0.0
    probes: int = 0
    """Tries started while half open; 0 while closed."""
    proven: int = 0
    """Probes that succeeded."""

    @property
    def tripped(self) -> bool:
        """Open or half open."""
        return self.open_until > 0

    def allows(self, now: float) -> bool:
        """Whether another try may start; changes nothing."""
        return not self.tripped or (now >= self.open_until and self.probes < self.config.probes)

    def begin(self) -> None:
        """Counts a try that starts."""
        if self.tripped:
            self.probes += 1

    def end(self, success: bool, now: float) -> None:
        """A try has ended."""
        if not success:
            self.failures += 1
            if self.tripped or self.failures >= self.config.failures:
                self.open_until, self.probes, self.proven = now + self.config.open_seconds, 0, 0
            return
        self.failures = 0
        if self.tripped:
            self.proven += 1
            if self.proven >= self.config.probes:
                self.open_until, self.probes, self.proven = 0.0, 0, 0

    def give_back(self) -> None:
        """Discounts a try that started but never reached its target."""
        self.probes = max(0, self.probes - 1)
