"""Nothing may fail between a decision and its record; if something does, the core is not used again.

Refusals (FleetError) come before the core changes and cost nothing. Any other error, MemoryError included, may have
left the core ahead of its journal. Undoing half a decision is guesswork, so it is not announced, nothing more is
decided, and the process ends. A restart goes on from the journal, which has everything that anybody was told.
"""

from collections.abc import Callable
from types import TracebackType

from parlmesh.errors import FleetError, Unavailable
from parlmesh.telemetry import get_logger

from . import metrics
from .core.core import Core

log = get_logger("parlmesh.scheduler")


class DecisionFailed(FleetError):
    """The core may differ from its journal; only a restart brings them together."""

    default_reason = "DECISION_FAILED"


class Decisions:
    """A context for each event of the core, until its actions are performed."""

    __slots__ = ("_core", "_durable", "_on_failure", "failure")

    def __init__(self, core: Core, *, durable: bool, on_failure: Callable[[], None]) -> None:
        """`durable`: whether there is a journal. Without one a restart would lose everything, so the core continues."""
        self._core = core
        self._durable = durable
        self._on_failure = on_failure
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        if self.failure is not None:
            self.check()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or (isinstance(error, FleetError) and not self._core.undelivered):
            return
        if self.failure is None and self._durable:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
            metrics.FAILED_DECISIONS.inc()
            log.exception("decision_failed", error)
            self._on_failure()

    def check(self) -> None:
        """Refuses everything after a failure."""
        if self.failure is not None:
            raise Unavailable("the scheduler is stopping after an error; try again", reason="STOPPING")

    def end(self) -> None:
        """Raises the error that the process ends with, if there was a failure."""
        if self.failure is not None:
            raise DecisionFailed(
                f"{type(self.failure).__name__}: {self.failure}; the last decision may not be in the journal: "
                "it was not announced, and a restart continues from the journal"
            ) from self.failure
