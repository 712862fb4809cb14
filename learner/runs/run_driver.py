"""Drives runs from where they are to their ends. Whatever goes wrong in one ends that one only."""

import asyncio
from collections.abc import Callable

from parlmesh.errors import FleetError
from parlmesh.exception_text import sentence_at
from parlmesh.telemetry import get_logger

from ..config import LearnerConfig
from ..experience import ExperienceQueue
from ..experience.sender_strikes import Strikes
from ..files.disk_retry import sentence_of
from ..files.kept_models import ModelFolder
from ..policies.registry import PolicyRegistry
from .live_run import LiveRun
from .progress import RunState
from .run_entry import Entry, Totals, progress_summary

log = get_logger("parlmesh.learner")

# Between two tries to prepare a run that the disk holds up.
_DISK_SECONDS = 1.0

Launch = Callable[[LearnerConfig, PolicyRegistry, ModelFolder], LiveRun]


class Driver:
    """`past` takes over the counters of runs that have ended. While `closing`, no end is recorded."""

    def __init__(self, launch: Launch, past: Totals, strikes: Strikes, clock: Callable[[], float]) -> None:
        self._launch = launch
        self.closing = False
        self._past = past
        self._strikes = strikes
        self._clock = clock

    def launch(self, entry: Entry) -> LiveRun:
        """Prepares a run; this may take a while."""
        live = self._launch(entry.config, entry.registry, entry.models)
        live.run.on_strike = self._strikes.add
        return live

    async def go_on(self, entry: Entry, group: asyncio.TaskGroup) -> None:
        """Trains a run from wherever it is; a run that cannot be built has failed."""
        if entry.live is None and not await self._made_ready(entry):
            return
        group.create_task(self._drive(entry), name=f"run {entry.run_id}")

    async def _made_ready(self, entry: Entry) -> bool:
        """Prepares a run; False when it has failed. If the disk holds it up, `_drive` tries again."""
        try:
            entry.live = await asyncio.to_thread(self.launch, entry)
            entry.unprepared = ""
        except OSError as error:
            self.hold_up(entry, error)
        except Exception as error:
            await self._fail(entry, error)
            return False
        return True

    def hold_up(self, entry: Entry, error: OSError) -> None:
        """Notes why the disk keeps a run from being prepared; logged once until the reason changes."""
        if entry.unprepared != (why := sentence_of(error)):
            log.warning("run_obstructed", run_id=entry.run_id, by="disk", reason=why)
        entry.unprepared = why

    async def _drive(self, entry: Entry) -> None:
        try:
            while entry.live is None:
                await asyncio.sleep(_DISK_SECONDS)
                if self.closing or entry.record.state.final or not await self._made_ready(entry):
                    return
            await self._train(entry, entry.live)
        except Exception as error:
            await self._fail(entry, error)
        finally:
            self._put_away(entry)

    async def _train(self, entry: Entry, live: LiveRun) -> None:
        def on_end(state: RunState, reason: str) -> None:
            if not self.closing:
                changes = {"state": state, "reason": reason, "end_time": self._clock()}
                entry.rewrite(**changes, standing=progress_summary(live.run))

        live.run.on_change = entry.tell
        live.run.on_end = on_end
        await live.drive(paused=entry.record.state is RunState.PAUSED)

    async def _fail(self, entry: Entry, error: Exception) -> None:
        reason = error.message if isinstance(error, FleetError) else sentence_at(error)
        log.exception("run_failed", error, run_id=entry.run_id)
        changes = {"state": RunState.FAILED, "reason": reason, "end_time": self._clock(), "standing": entry.standing}
        try:
            await asyncio.to_thread(entry.rewrite, **changes)
        except OSError as refused:
            log.error("run_record_not_written", run_id=entry.run_id, error=sentence_of(refused))
            entry.record = entry.record.model_copy(update=changes)
        entry.tell()

    def _put_away(self, entry: Entry) -> None:
        """Cleans up after a run that has ended. If the learner is stopping, the run continues at the next start."""
        if entry.live is not None and not self.closing:
            with ExperienceQueue.books:
                self._past.add(entry.live.run.queue)
                entry.live = None
            entry.registry.keep_newest()
            entry.tell()
