"""Weights & Biases, when installed and enabled. Whatever goes wrong there costs a warning, never a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from parlmesh.telemetry import get_logger

from ..config import WandbConfig

log = get_logger("parlmesh.learner")

_STEP = "environment_steps"


class Tracker(Protocol):
    """Receives every point of every curve."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Takes points at one step."""

    def close(self) -> None:
        """Ends the curves."""


class NoTracker:
    """Discards all points."""

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Discards them."""

    def close(self) -> None:
        """Has nothing to close."""


class WandbTracker:
    """One run of wandb; after the first error, nothing more is sent."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._broken = False

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Uses a step metric of our own: wandb's must grow, but a resumed run repeats some steps."""
        if not self._broken:
            try:
                self._run.log({**values, _STEP: step})
            except Exception as error:
                self._give_up(error)

    def close(self) -> None:
        """Waits until wandb has written everything."""
        if not self._broken:
            try:
                self._run.finish()
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._broken = True
        log.warning("wandb_failed", error=repr(error))


def open_tracker(config: WandbConfig, run_id: str, folder: Path, configuration: Mapping[str, Any]) -> Tracker:
    """A tracker as configured; NoTracker, after a warning, when wandb is not available."""
    if not config.enabled:
        return NoTracker()
    try:
        import wandb
    except ImportError:
        log.warning("wandb_missing", advice="pip install parlmesh[tracking], or set tracking.wandb.enabled to false")
        return NoTracker()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=config.project,
            id=run_id,
            name=run_id,
            dir=str(folder),
            mode=config.mode,
            config=dict(configuration),
            resume="allow" if config.mode == "online" else None,
            # Several runs may train in one process.
            reinit="create_new",
            # Otherwise it prints between the lines of our log.
            settings={"silent": True},
        )
        run.define_metric("*", step_metric=_STEP)
    except Exception as error:
        log.warning("wandb_failed", error=repr(error))
        return NoTracker()
    log.info("wandb_started", mode=config.mode, project=config.project, run_id=run_id)
    return WandbTracker(run)
