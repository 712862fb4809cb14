"""What keeps a run from getting on for now: said in its status and in the log, and over when the cause is gone."""

from collections.abc import Callable

from parlmesh.errors import FleetError, ResourceExhausted
from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")

# So many trajectories refused in a row are no accident.
_REFUSALS = 20
# A wait this long for one batch is worth a line in the log.
PATIENCE_SECONDS = 10.0


class Obstacles:
    """What is in the way of one run: `scheduler`, `disk`, `experience`. Lives on the event loop."""

    def __init__(self, run_id: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._run_id = run_id
        self._on_change = on_change
        self._met: dict[str, str] = {}
        self._refused_in_a_row = 0
        self.advice = ""
        """What would help the run, though nothing is in its way."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Everything that is in the way."""
        return tuple(self._met)

    @property
    def sentence(self) -> str:
        """Why the run waits; empty when it does not."""
        return "; ".join(self._met.values())

    def note_waiting(self, seconds: float, outstanding: int) -> None:
        """Experience has not come for a while, whatever the reason."""
        log.warning("waiting_for_experience", seconds=seconds, outstanding=outstanding)

    def meet(self, kind: str, sentence: str) -> None:
        """Notes what is in the way; logs it once for as long as it is the same."""
        if self._met.get(kind) != sentence:
            self._met[kind] = sentence
            log.warning("run_held_up", run_id=self._run_id, by=kind, reason=sentence)
            self._on_change()

    def clear(self, kind: str) -> None:
        """It is no longer in the way, if it ever was."""
        if self._met.pop(kind, None) is not None:
            log.info("run_goes_on", run_id=self._run_id, after=kind)
            self._on_change()

    def note_scheduler(self, sentence: str) -> None:
        """Why the scheduler takes no tasks now; nothing when it does."""
        if sentence:
            self.meet("scheduler", sentence)
        else:
            self.clear("scheduler")

    def note_advice(self, sentence: str) -> None:
        """What would help; nothing when nothing would."""
        if sentence != self.advice:
            self.advice = sentence
            if sentence:
                log.warning("slots_unused", run_id=self._run_id, advice=sentence)
            self._on_change()

    def note_refusal(self, error: FleetError) -> None:
        """A run that takes nothing it is sent must not look as if it were only waiting."""
        if not isinstance(error, ResourceExhausted):
            self._refused_in_a_row += 1
        if self._refused_in_a_row >= _REFUSALS:
            self.meet("experience", f"every trajectory is refused, the last ones as {error.reason}")

    def note_admission(self) -> None:
        """A trajectory was taken."""
        if self._refused_in_a_row:
            self._refused_in_a_row = 0
            self.clear("experience")
