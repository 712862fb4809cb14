"""Keeps a fleet busy with trials until the study is complete. The only writer of the study."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parlmesh.client import Outcome, OutcomeState, PARLController
from parlmesh.errors import FailedPrecondition
from parlmesh.types import Array

from .config import TuneConfig
from .hopeless_study import Prospects
from .plugin import KIND
from .search_space import settings_of
from .study import Study

if TYPE_CHECKING:
    import optuna

_ATTEMPTS = 3
# Outcomes that settings can cause: they cannot be trained, take too long, or kill the actor.
_OWN_FAULT = (OutcomeState.FAILED, OutcomeState.QUARANTINED)


@dataclass(frozen=True, slots=True)
class Told:
    """An event of a trial, for the observer."""

    trial: int
    word: str
    """rung, finished, pruned or failed."""
    value: float | None
    rung: int
    settings: Mapping[str, Any]
    why: str = ""


class Coordinator:
    """Runs `parallel` trials at once on the fleet of a controller."""

    def __init__(
        self,
        controller: PARLController,
        study: Study,
        config: TuneConfig,
        parallel: int,
        tell: Callable[[Told], None] = lambda told: None,
    ) -> None:
        self._controller, self._study, self._config = controller, study, config
        self._parallel, self._tell = parallel, tell
        self._id = uuid.uuid4().hex[:12]
        self._prospects = Prospects()

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until the study is complete or `stop` is set; then running trials are cancelled and queued again."""
        stopping = asyncio.ensure_future(stop.wait())
        running: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                while len(running) < min(self._parallel, self._study.left):
                    trial, values = self._study.ask()
                    running.add(asyncio.ensure_future(self._one(trial, values)))
                if not running:
                    return
                done, _ = await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {stopping}:
                    running.discard(task)
                    task.result()
                self._prospects.check()
        finally:
            stopping.cancel()
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running, timeout=30.0)

    async def _one(self, trial: "optuna.trial.Trial", values: dict[str, Any]) -> None:
        try:
            await self._climb(trial, values)
        except BaseException:
            self._study.given_back(trial)
            raise

    async def _climb(self, trial: "optuna.trial.Trial", values: dict[str, Any]) -> None:
        """Trains one part after another, each in any free slot."""
        config = self._config
        training = settings_of(config.training, {**values, "step_budget": config.steps})
        tensors: Mapping[str, Array] = {}
        steps, value = 0, float("nan")
        for rung in range(1, config.rungs + 1):
            until = max(steps + 1, config.steps * rung // config.rungs)
            outcome = await self._trained(trial.number, rung, training, tensors, steps, until)
            if not outcome.ok:
                self._failed(trial, rung, values, outcome)
                return
            answer = outcome.unwrap()
            value, steps = float(answer["value"]), int(answer["steps"])
            tensors = outcome.tensors
            trial.report(value, rung)
            if rung < config.rungs and trial.should_prune():
                self._study.pruned(trial)
                self._tell(Told(trial.number, "pruned", value, rung, values))
                self._prospects.succeeded()
                return
            if rung < config.rungs:
                self._tell(Told(trial.number, "rung", value, rung, values))
        self._study.finished(trial, value)
        self._prospects.succeeded()
        self._tell(Told(trial.number, "finished", value, config.rungs, values))

    async def _trained(
        self, trial: int, rung: int, training: dict[str, Any], tensors: Mapping[str, Array], start: int, until: int
    ) -> Outcome:
        config = self._config
        parameters = {"training": training, "plugins": list(config.plugins), "start": start, "until": until}
        task_id = f"tune-{self._id}-{trial}-{rung}"
        await self._controller.submit_task(
            KIND,
            parameters,
            tensors=tensors,
            task_id=task_id,
            run_timeout=config.rung_seconds,
            max_attempts=_ATTEMPTS,
        )
        try:
            return await self._controller.result(task_id, timeout=_ATTEMPTS * config.rung_seconds + 3600.0)
        except asyncio.CancelledError:
            # Stopping the study must not wait for its trials.
            cancelling = asyncio.ensure_future(self._controller.cancel([task_id]))
            await asyncio.wait({cancelling}, timeout=5.0)
            raise

    def _failed(self, trial: "optuna.trial.Trial", rung: int, values: dict[str, Any], outcome: Outcome) -> None:
        why = str(outcome.error)
        if outcome.state not in _OWN_FAULT or getattr(outcome.error, "reason", "") == "UNKNOWN_KIND":
            raise FailedPrecondition(f"trial {trial.number} has no result from the fleet: {why}", reason="FLEET")
        self._prospects.failed(why)
        self._study.failed(trial, why)
        self._tell(Told(trial.number, "failed", None, rung, values, why))
