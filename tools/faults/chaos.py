"""One chaos run from its plan to its verdict."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from parlmesh.testing.history import History, Journal, now
from parlmesh.testing.history_rules import Limits, Violation, check
from parlmesh.testing.postgres import Cluster

from . import memory
from .clients import RawClient, SdkClient, StalledReader
from .fleet import ChaosFleet
from .injector import Injector
from .memory import Sample
from .observer import Observer
from .schedule import Plan

_SETTLE_SECONDS = 150.0


@dataclass(slots=True)
class Report:
    """The result of a run."""

    seed: int
    seconds: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    effects: int = 0
    scrapes: int = 0
    steps: int = 0
    finished_runs: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    starved_seconds: float = 0.0
    """How long the machine gave this process no time; other processes that starved then cannot be blamed."""
    memory: dict[str, list[Sample]] = field(default_factory=dict)
    kept_tasks: int = 0
    """Outcomes that the scheduler keeps; it may grow until it has that many."""
    findings: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Empty when every promise was kept."""
        return [*self.findings, *map(str, self.violations), *self._leaks()]

    def text(self) -> str:
        """A readable summary, also for the log of a soak."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        lives = "\n    ".join(memory.text(name, samples) for name, samples in self.memory.items())
        return (
            f"seed {self.seed}: {self.seconds:.0f} s, {sum(self.faults.values())} faults, "
            f"{self.acknowledged} acknowledged tasks, {self.effects} effects, {self.finished_runs} runs finished, "
            f"{self.steps} steps, {self.scrapes} scrapes, {self.starved_seconds:.1f} s starved, "
            f"{len(self.problems)} violations\n"
            f"  faults: {faults}\n  starts: {self.starts}\n  memory:\n    {lives}"
        )

    def _leaks(self) -> list[str]:
        allowed = {"scheduler": memory.allowed_mib(self.kept_tasks)}
        return [
            leak
            for name, samples in self.memory.items()
            for leak in memory.leaks(name, samples, allowed.get(name, 0.0))
        ]


async def run_chaos(plan: Plan, folder: Path, database: Cluster | None = None) -> Report:
    """Runs the plan in an empty folder; the report says whether every promise was kept."""
    report = Report(plan.seed, kept_tasks=plan.scheduler["retention.max_tasks"])
    start = now()
    async with ChaosFleet(plan, folder, database=database) as fleet:
        with Journal(fleet.history / "clients.jsonl") as journal:
            await _live_through(fleet, journal, report)
        report.starts = {name: member.starts for name, member in fleet.members.items()}
    history = History.read(fleet.history.glob("*.jsonl"))
    report.effects = sum(type(record).__name__ == "Began" for record in history.records)
    report.violations = check(history, Limits(kept_outcomes=report.kept_tasks))
    report.seconds = now() - start
    return report


async def _live_through(fleet: ChaosFleet, journal: Journal, report: Report) -> None:
    seed, address = fleet.plan.seed, fleet.client_address
    clients = [RawClient("raw-0", address, journal, seed), RawClient("raw-1", address, journal, seed)]
    sdk = SdkClient("sdk-0", address, journal, seed)
    observer = Observer(fleet, journal)
    injector = Injector(fleet, journal, StalledReader(address, ["raw-0", "raw-1", "sdk-0"]).stall)
    watchers = [
        asyncio.create_task(coroutine)
        for coroutine in (
            injector.watch(),
            observer.scrape(),
            observer.follow_versions(),
            observer.watch_memory(),
            injector.watch_machine(),
        )
    ]
    workers = {
        "raw-0": asyncio.create_task(clients[0].run()),
        "raw-1": asyncio.create_task(clients[1].run()),
        "sdk-0": asyncio.create_task(sdk.run()),
        "training": asyncio.create_task(observer.train()),
    }
    begin = now()
    await injector.run()
    await asyncio.sleep(max(0.0, begin + fleet.plan.seconds - now()))
    for client in clients:
        client.stopping = True
    sdk.stopping = observer.stopping = True
    _, late = await asyncio.wait(workers.values(), timeout=_SETTLE_SECONDS)
    for name, task in workers.items():
        if task in late:
            injector.findings.append(f"{name} did not end within {_SETTLE_SECONDS:g} s")
        elif task.exception() is not None:
            injector.findings.append(f"{name} failed: {task.exception()!r}")
    await _end(*watchers, *workers.values())
    await _leave(fleet, injector)
    report.faults = dict(injector.performed)
    report.acknowledged = sum(client.accepted for client in clients) + sdk.accepted
    report.scrapes, report.steps, report.finished_runs = observer.scrapes, observer.steps, observer.finished_runs
    report.memory = dict(observer.memory)
    report.starved_seconds = injector.starved_seconds
    report.findings = [*injector.findings, *observer.failed_runs, *sdk.findings]


async def _leave(fleet: ChaosFleet, injector: Injector) -> None:
    """Every process leaves on SIGTERM, the actors first."""
    for member in reversed(fleet.members.values()):
        if member.running:
            code = await member.terminate()
            if code != 0:
                injector.find(member, f"left with exit code {code} at the end")


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError, Exception):
            await _awaited(task)


async def _awaited(task: Awaitable[None]) -> None:
    await task
