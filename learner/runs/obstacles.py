"""Transient obstacles of a run: shown in its status and in the log, and cleared when they end."""

from collections.abc import Callable

from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")

# This many refused trajectories in a row are no accident.
_REFUSALS = 20
# A wait this long for one batch is worth a line in the log.
PATIENCE_SECONDS = 10.0


class Obstacles:
    """The obstacles of one run: `scheduler`, `disk`, `experience`. Used on the event loop."""

    def __init__(self, run_id: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._run_id = run_id
        self._on_change = on_change
        self._met: dict[str, str] = {}
        self._refused_in_a_row = 0
        self.advice = ""
        """Advice that would help the run, although nothing holds it up."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of everything that is in the way."""
        return tuple(self._met)

    @property
    def sentence(self) -> str:
        """Why the run waits; empty when it does not."""
        return "; ".join(self._met.values())

    def note_waiting(self, seconds: float, outstanding: int) -> None:
        """Logs that no experience has come for a while, whatever the reason."""
        log.warning("waiting_for_experience", seconds=seconds, outstanding=outstanding)

    def meet(self, kind: str, sentence: str) -> None:
        """Notes an obstacle; logs it once until it changes."""
        if self._met.get(kind) != sentence:
            self._met[kind] = sentence
            log.warning("run_obstructed", run_id=self._run_id, by=kind, reason=sentence)
            self._on_change()

    def clear(self, kind: str) -> None:
        """Notes that something is no longer in the way, if it ever was."""
        if self._met.pop(kind, None) is not None:
            log.info("run_goes_on", run_id=self._run_id, after=kind)
            self._on_change()

    def note_scheduler(self, sentence: str) -> None:
        """Notes why the scheduler takes no tasks now; empty when it does."""
        if sentence:
            self.meet("scheduler", sentence)
        else:
            self.clear("scheduler")

    def note_advice(self, sentence: str) -> None:
        """Notes what would help; empty when nothing would."""
        if sentence != self.advice:
            self.advice = sentence
            if sentence:
                log.warning("slots_unused", run_id=self._run_id, advice=sentence)
            self._on_change()

    def note_refusal(self, error: FleetError) -> None:
        """Counts refusals: a run that refuses everything it is sent must not look as if it were only waiting."""
        if not isinstance(error, ResourceExhausted):
            self._refused_in_a_row += 1
        if self._refused_in_a_row >= _REFUSALS:
            self.meet("experience", f"every trajectory is refused, the last ones as {error.reason}")

    def note_admission(self) -> None:
        """Notes that a trajectory was accepted."""
        if self._refused_in_a_row:
            self._refused_in_a_row = 0
            self.clear("experience")
