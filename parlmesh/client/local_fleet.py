"""A private fleet on this machine: one scheduler and a few actor processes that end with this one."""

import asyncio
import atexit
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput
from parlmesh.exit_codes import PARENT_ENDED
from parlmesh.function_tasks import ARGUMENTS, IMPORTING, sources, stop_import
from parlmesh.processes import ChildSpec, Supervisor, merged, service_command, write_settings
from parlmesh.rpc.error_statuses import fleet_error_in
from parlmesh.telemetry import get_logger

from .worker_processes import WORKERS_PER_PROCESS, processes_for, shares

log = get_logger("parlmesh.client")

HOST = "127.0.0.1"
_GRACE_SECONDS = 2.0
_LONGEST_ARGUMENTS = 100_000
_FOREIGN_SETTINGS = ("PARLMESH_SCHEDULER__", "PARLMESH_ACTOR__")


def check_not_importing() -> None:
    """A worker that imports a program to find its handlers must not run the program."""
    stop_import()
    if os.environ.get(IMPORTING):
        raise FailedPrecondition(
            "initialize() was called while a worker imported this program: put the code that starts it under"
            ' `if __name__ == "__main__":`',
            reason="UNGUARDED_PROGRAM",
        )


class LocalFleet:
    """Runs from `start` to `stop` and restarts processes that die. `on_lost` is called when the scheduler or every
    actor is no longer restarted, because every wait would then last forever."""

    def __init__(
        self,
        workers: int,
        *,
        learner: str = "",
        scheduler: Mapping[str, Any] | None = None,
        actor: Mapping[str, Any] | None = None,
        processes: int | None = None,
        start_seconds: float = 60.0,
        on_lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        count = processes_for(workers, os.cpu_count() or 1) if processes is None else processes
        if not -(-workers // WORKERS_PER_PROCESS) <= count <= workers:
            raise InvalidInput(
                f"processes is {count}; {workers} workers need {-(-workers // WORKERS_PER_PROCESS)} to {workers}",
                reason="INVALID_PROCESSES",
            )
        self.workers = workers
        self.address = ""
        self._shares = shares(workers, count)
        self._learner = learner
        self._tasks = sources()
        self._scheduler_settings = dict(scheduler or {})
        self._actor_settings = dict(actor or {})
        self._start_seconds = start_seconds
        self._on_lost = on_lost
        self._stopping = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.trouble = ""
        """Why a process is no longer restarted; empty while all are."""

    async def start(self) -> str:
        """The scheduler's address, once it serves; the actors connect in the meantime."""
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(started), name="parlmesh local fleet")
        try:
            self.address = await started
        except BaseException:
            await self.stop()
            raise
        return self.address

    async def stop(self) -> None:
        """Returns when every process has ended."""
        self._stopping.set()
        if self._keeper is not None:
            await self._keeper

    async def _keep(self, started: asyncio.Future[str]) -> None:
        try:
            folder = Path(mkdtemp(prefix="parlmesh-"))
            # For a program that ends without closing the fleet: nothing below runs then.
            remove = partial(self._remove, folder, os.getpid())
            atexit.register(remove)
            try:
                await self._supervise(folder, started)
            finally:
                atexit.unregister(remove)
                remove()
        except Exception as error:
            known = fleet_error_in(error)
            if known is None:
                log.exception("local_fleet_failed", error)
                known = FleetError(f"the local fleet failed: {error!r}", reason="LOCAL_FLEET_FAILED")
            self._lost(known.message)
            if not started.done():
                started.set_exception(known)

    def _remove(self, folder: Path, process: int) -> None:
        # Keeps the folder if `trouble` names a log in it, or if this is a forked process.
        if str(folder) not in self.trouble and os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    async def _supervise(self, folder: Path, started: asyncio.Future[str]) -> None:
        environment = child_environment(os.environ, sys.path)
        async with Supervisor(note=_note, grace_seconds=_GRACE_SECONDS, environment=environment) as supervisor:
            address = await self._start_scheduler(supervisor, folder)
            for index, workers in enumerate(self._shares):
                self._start_actors(supervisor, folder, index, workers, address)
            if not started.done():
                started.set_result(address)
            async with asyncio.TaskGroup() as group:
                watchers = [group.create_task(self._watch(supervisor, name)) for name in supervisor.children]
                await self._stopping.wait()
                for watcher in watchers:
                    watcher.cancel()
            # Actors leave immediately while a scheduler can take their last results.
            await supervisor.stop(supervisor.children.keys() - {"scheduler"})
            await supervisor.stop()

    async def _start_scheduler(self, supervisor: Supervisor, folder: Path) -> str:
        file = folder / "scheduler.yaml"
        write_settings(file, self._scheduler(0))
        # Where the program ends without closing the fleet, the scheduler still removes the arrays.
        supervisor.start(
            ChildSpec(
                "scheduler",
                lambda _: service_command("scheduler", file),
                folder / "scheduler.log",
                last_signal=PARENT_ENDED,
            )
        )
        port = await supervisor.serving("scheduler", deadline_seconds=self._start_seconds)
        # After a restart, the actors look for it at the same port.
        write_settings(file, self._scheduler(port))
        return f"{HOST}:{port}"

    def _start_actors(self, supervisor: Supervisor, folder: Path, index: int, workers: int, address: str) -> None:
        name = f"local-{index}"
        file = folder / f"{name}.yaml"
        settings = {
            "actor_id": name,
            "actors": workers,
            "scheduler": address,
            "metrics": {"port": None},
            "limits": {"drain_seconds": 0.5},
        }
        if self._tasks:
            settings["tasks"] = list(self._tasks)
        if self._learner:
            settings["learner"] = self._learner
        write_settings(file, merged(settings, self._actor_settings))
        supervisor.start(ChildSpec(name, lambda _: service_command("actor", file), folder / f"{name}.log"))

    def _scheduler(self, port: int) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "listen": {"host": HOST, "port": port, "drain_seconds": 0.2},
            "metrics": {"port": None},
        }
        # It ends with this process, and so do its tasks.
        settings["store"] = {"kind": "memory"}
        return merged(settings, self._scheduler_settings)

    async def _watch(self, supervisor: Supervisor, name: str) -> None:
        child = supervisor.children[name]
        await child.settled.wait()
        self.trouble = child.reason or f"{name} was stopped"
        actors = (each for other, each in supervisor.children.items() if other != "scheduler")
        if name == "scheduler":
            self._lost(self.trouble)
        elif all(each.settled.is_set() for each in actors):
            self._lost(f"no worker is left: {self.trouble}")

    def _lost(self, reason: str) -> None:
        self.trouble = reason
        self._on_lost(reason)


def child_environment(environment: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """Lets children import what this process can, and leaves out settings of other fleets."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_FOREIGN_SETTINGS)}
    arguments = json.dumps(sys.argv[1:])
    return kept | {
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in path),
        IMPORTING: "1",
        # The system takes no longer ones.
        ARGUMENTS: arguments if len(arguments) <= _LONGEST_ARGUMENTS else "[]",
    }


def _note(text: str) -> None:
    log.warning("local_fleet", note=text)
