"""What keeps a run from getting on for now: said in its status and in the log, and over when the cause is gone."""

from collections.abc import Callable

from parlmesh.telemetry import get_logger

log = get_logger("parlmesh.learner")


class Obstacles:
    """What is in the way of one run: `scheduler`, `disk`, `experience`. Lives on the event loop."""

    def __init__(self, run_id: str, on_change: Callable[[], None] = lambda: None) -> None:
        self._run_id = run_id
        self._on_change = on_change
        self._met: dict[str, str] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Everything that is in the way."""
        return tuple(self._met)

    @property
    def sentence(self) -> str:
        """Why the run waits; empty when it does not."""
        return "; ".join(self._met.values())

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
