"""The processes of a chaos run: started, hit, started again; links go through proxies, disks through shims."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from parlmesh.testing import Process, free_port
from parlmesh.testing.postgres import Cluster
from parlmesh.testing.proxy import Proxy

from .handlers import KINDS, VARIABLE
from .schedule import Plan
from .shim import Shim

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120.0
_LEAVE_SECONDS = 120.0
_TELL_SECONDS = 2.0
# Instead of an exit code: it did not leave and was killed.
STILL_THERE = 1000
TRAINING = {
    "training.num_envs": 4,
    "training.trajectory_steps": 16,
    "training.hidden": "[8]",
    "training.goal_return": "null",
    "training.step_budget": 1_000_000_000,
    "training.evaluation_interval_steps": 20_000,
    "training.evaluation_episodes": 1,
    "training.checkpoint_interval_versions": 5,
}


class Member:
    """One process of the fleet, through all its lives."""

    def __init__(self, name: str, module: str, settings: dict[str, Any], event: str, shim: Shim, folder: Path) -> None:
        self.name = name
        self.shim = shim
        self.starts = 0
        # Held during changes that must not overlap.
        self.busy = asyncio.Lock()
        self.process: Process | None = None
        self.last_lines: Sequence[str] = ()
        self._module, self._settings, self._event = module, settings, event
        self._log = folder / f"{name}.log"
        self._environment = {**shim.environment, VARIABLE: str(folder / f"effects-{name}.jsonl")}

    async def start(self) -> None:
        """Returns once it serves; AssertionError with the end of its log when it does not."""
        arguments = [part for name, value in self._settings.items() for part in ("--set", f"{name}={value}")]
        self.process = Process(self._module, *arguments, cwd=ROOT, environment=self._environment)
        self.starts += 1
        await self.wait_until_started()

    async def wait_until_started(self) -> None:
        """The deadline of a process that takes longer."""
        assert self.process is not None
        await asyncio.to_thread(self.process.wait_for, self._event, _START_SECONDS)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.signal(number)

    async def kill(self) -> None:
        assert self.process is not None
        await asyncio.to_thread(self.process.kill)
        self.close()

    async def terminate(self) -> int:
        """Ends it and returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return await asyncio.to_thread(self.process.wait, _LEAVE_SECONDS)
        except AssertionError:
            # On this signal it logs what keeps it, before it is killed.
            self.process.signal(signal.SIGUSR1)
            await asyncio.sleep(_TELL_SECONDS)
            return STILL_THERE
        finally:
            self.close()

    def close(self) -> None:
        if self.process is not None:
            with self.process:
                pass
            with self._log.open("a") as log:
                self.last_lines = self.process.lines
                log.writelines(f"{line}\n" for line in self.last_lines)
            self.process = None


class ChaosFleet:
    """A scheduler, a learner and actors, by a plan; `async with` owns them."""

    def __init__(self, plan: Plan, folder: Path, *, learner: bool = True, database: Cluster | None = None) -> None:
        """With a `database`, the scheduler's store is in it, over its own link."""
        self.plan = plan
        self.database = database
        self._with_learner = learner
        self.folder = folder
        self.history = folder / "history"
        self.disk = folder / "disk"
        for each in (self.history, self.disk):
            each.mkdir(parents=True)
        self.members: dict[str, Member] = {}
        self.links: dict[str, Proxy] = {}
        self._scheduler, self._learner = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        self.learner_metrics = free_port()
        self._store: dict[str, Any] = {"store.path": self.disk / "scheduler" / "scheduler.sqlite"}
        self._stack = AsyncExitStack()

    @property
    def scheduler_address(self) -> str:
        return self._scheduler

    @property
    def learner_address(self) -> str:
        return self._learner

    @property
    def client_address(self) -> str:
        """The scheduler's address for clients, through their own link."""
        return self.links["client"].address

    async def __aenter__(self) -> "ChaosFleet":
        self.links["client"] = await self._stack.enter_async_context(Proxy(self._scheduler))
        if self.database is not None:
            link = await self._stack.enter_async_context(Proxy(f"127.0.0.1:{self.database.port}"))
            self.links["database"] = link
            name = self.database.database().rpartition("/")[2]
            self._store = {"store.url": self.database.url(name, address=link.address), "store.address": self._scheduler}
        self._add("scheduler", "scheduler", self._scheduler_settings(), "serving")
        if self._with_learner:
            self._add("learner", "learner", self._learner_settings(), "serving")
        for index, settings in enumerate(self.plan.actors):
            name = f"actor-{index}"
            self.links[name] = await self._stack.enter_async_context(Proxy(self._scheduler))
            self._add(name, "actor", {**self._actor_settings(name), **settings}, "connected")
        try:
            for member in self.members.values():
                await member.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for member in self.members.values():
            member.close()
        await self._stack.aclose()

    def _add(self, name: str, module: str, settings: dict[str, Any], event: str) -> None:
        disk = self.disk / name
        disk.mkdir()
        shim = Shim(name, disk, self.folder)
        self.members[name] = Member(name, module, settings, event, shim, self.history)

    def _scheduler_settings(self) -> dict[str, Any]:
        return {
            "listen.port": _port(self._scheduler),
            "listen.drain_seconds": 1,
            "metrics.port": "null",
            **self._store,
            **self.plan.scheduler,
        }

    def _learner_settings(self) -> dict[str, Any]:
        return {
            "listen.port": _port(self._learner),
            "listen.drain_seconds": 1,
            "metrics.port": self.learner_metrics,
            "scheduler": self._scheduler,
            "run_dir": self.disk / "learner" / "run",
            "training.seed": self.plan.seed,
            **TRAINING,
        }

    def _actor_settings(self, name: str) -> dict[str, Any]:
        return {
            "node_id": name,
            "actor_id": name,
            "metrics.port": "null",
            "scheduler": self.links[name].address,
            "learner": self._learner,
            "limits.drain_seconds": 5,
            **{f"handlers.{kind}": source for kind, source in KINDS.items()},
        }


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
