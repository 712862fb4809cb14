"""All runs of a learner: created, started, paused, stopped, remembered across restarts, found by id."""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Never

from pydantic import ValidationError

from parlmesh.config import effective
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import (
    AlreadyExists,
    ConfigError,
    FailedPrecondition,
    FleetError,
    InvalidInput,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from parlmesh.exception_text import sentence_at
from parlmesh.telemetry import get_logger

from ..config import RUN_ID, LearnerConfig, TrainingConfig
from ..experience import ExperienceQueue
from ..experience.sender_strikes import Strikes
from ..files.disk_retry import sentence_of
from ..files.folder_lock import FolderLock
from ..files.kept_models import ModelFolder
from ..policies.registry import PolicyRegistry
from ..policies.version_numbers import uid_of
from .live_run import LiveRun
from .progress import RunState
from .run_driver import Driver, Launch
from .run_entry import Entry, Totals
from .run_file import RunRecord, read_record
from .training_loop import TrainingRun

log = get_logger("parlmesh.learner")

_RECALL_SECONDS = 1.0


class Runs:
    """The runs by id. Used on the event loop; files are written in threads."""

    def __init__(
        self,
        config: LearnerConfig,
        *,
        launch: Launch,
        check: Callable[[TrainingConfig], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._check = check
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._group: asyncio.TaskGroup | None = None
        # One change at a time: a decision must not rely on state that another change is about to alter.
        self._changing = asyncio.Lock()
        self.past = Totals()
        self.strikes = Strikes()
        self._driver = Driver(launch, self.past, self.strikes, clock)
        self._locks: list[FolderLock] = []
        # Runs that cannot be read from the disk now, and why.
        self._unread: dict[str, str] = {}

    def open(self) -> None:
        """Reads the recorded runs and prepares the configured one; raises ConfigError when that cannot be done."""
        try:
            # The lock on run_dir also covers what lies in it.
            for folder in filter(None, (self._config.run_dir, self._config.runs_dir)):
                self._locks.append(FolderLock(folder))
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for folder in sorted(self._config.created_runs_dir.glob("*/")):
            self._recall(folder)
        config = self._config
        if config.run_id in self._entries:
            folder = self._entries[config.run_id].config.run_dir
            raise ConfigError(f"run_id {config.run_id!r} is taken by the run in {folder}", key="run_id")
        record = read_record(config.run_dir)
        configuration = effective(config.training)
        if record is None or record.run_id != config.run_id:
            record = RunRecord(
                run_id=config.run_id,
                state=RunState.RUNNING,
                created_time=self._clock(),
                configuration=configuration,
            )
        elif record.state.final and not config.reopen_ended and _completed(record.configuration) == configuration:
            self._enter(record, config)
            return
        state = RunState.PAUSED if record.state is RunState.PAUSED else RunState.RUNNING
        changes = {"state": state, "configuration": configuration, "reason": "", "end_time": None, "standing": {}}
        entry = self._enter(record.model_copy(update=changes), config)
        try:
            entry.live = self._driver.launch(entry)
        except FleetError:
            # The operator must repair it, and is told before anything is served.
            raise
        except OSError as error:
            # This passes, or is mended while other runs train; it is tried again until then.
            self._driver.hold_up(entry, error)
        except Exception as error:
            log.exception("run_failed", error, run_id=entry.run_id)
            reason = sentence_at(error)
            failed = {"state": RunState.FAILED, "reason": reason, "end_time": self._clock()}
            entry.record = entry.record.model_copy(update=failed)
        try:
            entry.record.write(config.run_dir)
        except OSError as error:
            # The next change writes it; until then a start finds the run unchanged.
            log.warning("run_record_not_written", run_id=entry.run_id, error=sentence_of(error))

    async def keep(self, stop: asyncio.Event) -> None:
        """Trains all active runs until `stop`; each then has a checkpoint and continues at the next start."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for entry in list(self._entries.values()):
                    if entry.record.state in (RunState.RUNNING, RunState.PAUSED):
                        await self._driver.go_on(entry, group)
                recalling = group.create_task(self._recall_on(group))
                await stop.wait()
                recalling.cancel()
                self._driver.closing = True
                for entry in self._entries.values():
                    if entry.live is not None:
                        entry.live.run.stop("the learner was told to stop", leaving=True)
        finally:
            self.close()

    def close(self) -> None:
        """Releases the folders for another learner."""
        while self._locks:
            self._locks.pop().release()

    # Finding

    def get(self, run_id: str) -> Entry:
        """The run; an empty id means the only one."""
        if not run_id:
            if len(self._entries) == 1:
                return next(iter(self._entries.values()))
            message = f"run_id is needed: this learner has {len(self._entries)} runs, {self._names()}"
            raise InvalidInput(message, reason="RUN_ID_NEEDED")
        if run_id not in self._entries:
            self._check_read(run_id)
            raise NotFound(f"run {run_id!r} is not here; this learner has {self._names()}", reason="UNKNOWN_RUN")
        return self._entries[run_id]

    def newest_first(self) -> list[Entry]:
        """All runs."""
        return sorted(self._entries.values(), key=lambda entry: entry.record.created_time, reverse=True)

    def registry(self, run_id: str) -> PolicyRegistry:
        """The policies of a run; its newest model if it ended before the learner was restarted."""
        entry = self.get(run_id)
        if not entry.registry.version and entry.state.final:
            models = entry.models.newest_first()
            if models:
                entry.registry.publish(models[0].version, entry.models.blob(models[0]))
        return entry.registry

    def queues(self) -> list[ExperienceQueue]:
        """The queues of all runs that train here now."""
        return [entry.live.run.queue for entry in self._entries.values() if entry.live is not None]

    # Experience

    def training(self, run_id: str) -> TrainingRun | None:
        """The run of this id, if it trains here now."""
        entry = self._entries.get(run_id)
        return None if entry is None or entry.live is None else entry.live.run

    def refuse(self, run: TrainingRun | None, error: FleetError, sender: str, *, strike: bool = True) -> None:
        """Counts a trajectory that could not even be read, and unless it may be an honest actor's, a strike."""
        if strike:
            self.strikes.add(sender, error.reason, error.message)
        if run is not None:
            run.queue.refuse(error)
        else:
            self._count_refused(error)

    def refuse_stray(self, run_id: str) -> Never:
        """Counts a trajectory of a run that does not train here, and raises why."""
        entry = self._entries.get(run_id)
        if entry is None:
            message = f"run {run_id!r} is not trained here; this learner has {self._names()}"
            error = FailedPrecondition(message, reason="UNKNOWN_RUN")
        else:
            message = f"run {run_id!r} is {entry.state.value} and takes no trajectories"
            error = FailedPrecondition(message, reason="RUN_NOT_TRAINING")
        self._count_refused(error)
        raise error

    # Life

    async def create(self, run_id: str, configuration: Mapping[str, Any]) -> Entry:
        """Creates a run that waits to be started; refuses it if any part of it cannot work."""
        async with self._changing:
            if run_id and re.fullmatch(RUN_ID, run_id) is None:
                raise InvalidInput(f"run_id must match {RUN_ID}, got {run_id!r}", reason="RUN_ID")
            if run_id in self._entries:
                raise AlreadyExists(f"run {run_id!r} exists and is {self._entries[run_id].state.value}", run_id=run_id)
            self._check_read(run_id)
            if len(self._entries) >= self._config.max_runs:
                message = (
                    f"{len(self._entries)} runs are kept; that is the limit (max_runs):"
                    f" move ended ones out of {self._config.created_runs_dir} and restart the learner"
                )
                raise ResourceExhausted(message, reason="TOO_MANY_RUNS")
            try:
                training = TrainingConfig.model_validate(configuration)
            except ValidationError as error:
                raise describe_errors(TrainingConfig, error) from None
            run_id = run_id or self._new_id(training)
            record = RunRecord(
                run_id=run_id,
                state=RunState.CREATED,
                created_time=self._clock(),
                configuration=effective(training),
            )
            entry = self._remember(record)
            try:
                await asyncio.to_thread(self._check, training)
                await asyncio.to_thread(entry.record.write, entry.config.run_dir)
            except OSError as error:
                del self._entries[run_id]
                raise Unavailable(sentence_of(error), reason="DISK") from error
            except BaseException:
                del self._entries[run_id]
                raise
            log.info("run_created", run_id=run_id, environment=training.environment.id)
            return entry

    async def start(self, run_id: str) -> Entry:
        """Starts a created run."""
        async with self._changing:
            entry = self.get(run_id)
            if entry.state is not RunState.CREATED:
                raise FailedPrecondition(f"run {entry.run_id!r} is {entry.state.value} already", reason="STARTED")
            self._check_room()
            if self._group is None or self._driver.closing:
                raise FailedPrecondition("the learner is stopping", reason="STOPPING")
            await self._rewrite(entry, state=RunState.RUNNING)
            await self._driver.go_on(entry, self._group)
            return entry

    async def pause(self, run_id: str) -> Entry:
        """Stops collecting and training until resumed, even across a restart."""
        async with self._changing:
            entry = self.get(run_id)
            run = self._living(entry, "paused").run
            run.progress.check_state(RunState.RUNNING, "paused")
            await self._rewrite(entry, state=RunState.PAUSED)
            run.pause()
            return entry

    async def resume(self, run_id: str) -> Entry:
        """Continues after a pause."""
        async with self._changing:
            entry = self.get(run_id)
            live = self._living(entry, "resumed")
            if entry.state is RunState.PAUSED:
                self._check_room()
            live.run.progress.check_state(RunState.PAUSED, "resumed")
            await self._rewrite(entry, state=RunState.RUNNING)
            live.run.resume()
            return entry

    async def stop(self, run_id: str) -> Entry:
        """Ends a run after the current update; an ended run is unchanged."""
        async with self._changing:
            entry = self.get(run_id)
            reason = "stopped on request"
            if entry.live is not None:
                entry.live.run.stop(reason)
            elif not entry.state.final:
                await self._rewrite(entry, state=RunState.STOPPED, reason=reason, end_time=self._clock())
                entry.unprepared = ""
                entry.tell()
            return entry

    async def _rewrite(self, entry: Entry, **changes: Any) -> None:
        """Changes the run's record; raises Unavailable, with nothing changed, when the disk refuses."""
        try:
            await asyncio.to_thread(entry.rewrite, **changes)
        except OSError as error:
            raise Unavailable(sentence_of(error), reason="DISK") from error

    def _living(self, entry: Entry, wish: str) -> LiveRun:
        if entry.live is None:
            needed = "running" if wish == "paused" else "paused"
            raise FailedPrecondition(f"only a {needed} run can be {wish}; this one is {entry.state.value}")
        return entry.live

    def _check_room(self) -> None:
        running = sum(1 for entry in self._entries.values() if entry.state is RunState.RUNNING)
        limit = self._config.max_running_runs
        if running >= limit:
            message = f"{running} runs are running; the limit is {limit} (max_running_runs): pause or stop one first"
            raise ResourceExhausted(message, reason="TOO_MANY_RUNNING")

    def _count_refused(self, error: FleetError) -> None:
        with ExperienceQueue.books:
            self.past.received += 1
            self.past.dropped[error.reason] += 1

    def _remember(self, record: RunRecord) -> Entry:
        """Enters a run that was created over gRPC and has its own folder."""
        training = TrainingConfig.model_validate(dict(record.configuration))
        folder = self._config.created_runs_dir / record.run_id
        changes = {"run_id": record.run_id, "run_dir": folder, "training": training}
        return self._enter(record, self._config.model_copy(update=changes))

    def _recall(self, folder: Path) -> Entry | None:
        """Enters a run that was created before; None when there is none, or it cannot be read now."""
        try:
            record = read_record(folder)
        except OSError as error:
            if self._unread.get(folder.name) != (why := sentence_of(error)):
                log.error("run_record_unreadable", run_id=folder.name, error=why)
            self._unread[folder.name] = why
            return None
        self._unread.pop(folder.name, None)
        if record is None or record.run_id != folder.name:
            return None
        try:
            return self._remember(record)
        except ValidationError as error:
            why = describe_errors(TrainingConfig, error).message
            log.error("run_record_damaged", run_id=record.run_id, error=why)
            return None

    async def _recall_on(self, group: asyncio.TaskGroup) -> None:
        """Tries again to read runs that could not be read, until all have been."""
        while self._unread:
            await asyncio.sleep(_RECALL_SECONDS)
            async with self._changing:
                for run_id in sorted(self._unread):
                    entry = self._recall(self._config.created_runs_dir / run_id)
                    if entry is not None and entry.record.state in (RunState.RUNNING, RunState.PAUSED):
                        log.info("run_recalled", run_id=run_id)
                        await self._driver.go_on(entry, group)

    def _check_read(self, run_id: str) -> None:
        if run_id in self._unread:
            raise Unavailable(f"run {run_id!r} cannot be read at present: {self._unread[run_id]}", reason="DISK")

    def _enter(self, record: RunRecord, config: LearnerConfig) -> Entry:
        models = ModelFolder(config.run_dir / "models", record.run_id, config.training.kept_models)
        registry = PolicyRegistry(record.run_id, uid_of(config.run_dir))
        entry = self._entries[record.run_id] = Entry(config, record, registry, models)
        return entry

    def _new_id(self, training: TrainingConfig) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", training.environment.id.lower()).strip("-") or "run"
        while (run_id := f"{slug[:80]}-{secrets.token_hex(3)}") in self._entries:
            continue
        return run_id

    def _names(self) -> str:
        names = [repr(entry.run_id) for entry in self.newest_first()]
        return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") if names else "none"


def _completed(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration that an older learner recorded, with defaults for settings that are new since."""
    try:
        return effective(TrainingConfig.model_validate(dict(configuration)))
    except ValidationError:
        return configuration
