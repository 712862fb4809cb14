"""Performs planned faults on a fleet and records each with the time it really took."""

import asyncio
import errno
import math
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

from parlmesh.testing.history import Fault, Journal, now
from parlmesh.testing.history_rules import DISK

from .fleet import ChaosFleet, Member
from .schedule import PlannedFault

# How long an actor that was stopped or cut off may act on earlier messages.
_SETTLING_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_LATEST_SECONDS = 5.0
# A good part of a lease.
_STARVED_SECONDS = 2.0
_CANNOT_WRITE = ("full_disk_scheduler", "broken_disk_scheduler")
_AWAY = ("kill_scheduler", "terminate_scheduler", "stop_scheduler")
_FAULTS_OF_DISKS = {
    "slow_disk": ("fsync_delay_ms", "slow_fsyncs"),
    "full_disk": ("bytes_left", "full_writes"),
    "broken_disk": ("write_errno", "failed_writes"),
    "short_writes": ("short_writes", "shortened_writes"),
}


class Injector:
    """Follows a plan; a process that does not recover is a finding."""

    def __init__(self, fleet: ChaosFleet, journal: Journal, stall: Callable[[float], Awaitable[None]]) -> None:
        self._fleet = fleet
        self._journal = journal
        self._stall = stall
        self.performed: Counter[str] = Counter()
        self.findings: list[str] = []
        self.starved_seconds = 0.0
        self._scheduler_back = 0.0
        self._database_busy = asyncio.Lock()

    async def run(self) -> None:
        """Runs until the last planned fault has ended."""
        start = now()
        async with asyncio.TaskGroup() as group:
            for fault in self._fleet.plan.faults:
                await asyncio.sleep(max(0.0, start + fault.at - now()))
                group.create_task(self._perform(fault, latest=start + fault.at + _LATEST_SECONDS))

    async def watch(self) -> None:
        """Reports processes that end on their own, and starts them again, until cancelled."""
        while True:
            await asyncio.sleep(0.25)
            for member in self._fleet.members.values():
                if not member.busy.locked() and not member.running:
                    async with member.busy:
                        if member.process is not None:
                            self.find(member, "ended by itself")
                            member.close()
                        await self._start(member)

    async def watch_machine(self) -> None:
        """Records until cancelled when the machine gives this process no time, because silence then proves nothing."""
        while True:
            before = now()
            await asyncio.sleep(_LOOK_SECONDS)
            late = now() - before - _LOOK_SECONDS
            if late > _STARVED_SECONDS:
                self.starved_seconds += late
                for name in self._fleet.members:
                    self._journal.add(Fault(name, "starved", before, now(), lingers=_SETTLING_SECONDS))

    def find(self, member: Member, what: str) -> None:
        """Records violations that no fault excuses."""
        lines = member.process.lines if member.process is not None else member.last_lines
        tail = "\n    ".join(lines[-8:])
        self.findings.append(f"{member.name} {what} at {now():.3f}:\n    {tail}")

    async def _perform(self, fault: PlannedFault, latest: float) -> None:
        what, _, _ = fault.name.rpartition("_")
        if fault.target == "client":
            await self._on_client(fault, what)
            return
        if fault.target == "database":
            await self._on_database(fault, what)
            return
        member = self._fleet.members[fault.target]
        async with member.busy:
            if now() > latest:
                # On a busy machine a restart takes long; faults that pile up behind it would leave no time to work.
                return
            if not member.running:
                self.find(member, "was not running")
                return
            start = now()
            if fault.name in _AWAY:
                self._scheduler_back = math.inf
            lingers = await self._on_member(member, fault, what)
            if fault.target != "scheduler":
                self._record(fault, start, lingers)
            if not member.running:
                await self._start(member)
            if fault.target == "scheduler":
                # It is away until it serves again.
                if fault.name in _AWAY:
                    self._scheduler_back = now()
                self._record(fault, start, lingers)

    async def _on_member(self, member: Member, fault: PlannedFault, what: str) -> float:
        if what == "kill":
            await member.kill()
            self._note(fault)
            await asyncio.sleep(fault.seconds)
            return 0.0
        if what == "terminate":
            code = await member.terminate()
            if code != 0:
                self.find(member, f"left with exit code {code} after SIGTERM")
            self._note(fault)
            await asyncio.sleep(fault.seconds)
            return 0.0
        if what == "stop":
            member.signal(signal.SIGSTOP)
            self._note(fault)
            await asyncio.sleep(fault.seconds)
            member.signal(signal.SIGCONT)
            return _SETTLING_SECONDS
        if what == "clock":
            # The clock stays shifted, so that the next start sees it too.
            member.shim.set(clock_shift_s=fault.amount)
            self._note(fault)
            return 0.0
        if what in _FAULTS_OF_DISKS:
            await self._on_disk(member, fault, what)
            return 0.0
        return await self._on_link(fault, what)

    async def _on_disk(self, member: Member, fault: PlannedFault, what: str) -> None:
        control, counter = _FAULTS_OF_DISKS[what]
        before = member.shim.seen(counter)
        member.shim.set(**{control: errno.EIO if what == "broken_disk" else fault.amount or 1})
        await asyncio.sleep(fault.seconds)
        member.shim.heal()
        if member.shim.seen(counter) > before:
            self._note(fault)

    async def _on_link(self, fault: PlannedFault, what: str) -> float:
        link = self._fleet.links[fault.target]
        before = link.cuts + link.up.held + link.down.held + link.up.slowed + link.down.slowed
        if what == "cut":
            link.cut()
        elif what == "refuse":
            link.refuse()
        elif what.startswith("hold"):
            link.hold(up=what != "hold_down", down=what != "hold_up")
        elif what == "delay":
            link.slow(delay_seconds=0.3)
        else:
            link.slow(bytes_per_second=2_000)
        await asyncio.sleep(0.0 if what == "cut" else fault.seconds)
        link.heal()
        if link.cuts + link.up.held + link.down.held + link.up.slowed + link.down.slowed > before:
            self._note(fault)
        return _SETTLING_SECONDS

    async def _on_database(self, fault: PlannedFault, what: str) -> None:
        """Excuses nothing, like a fault of a disk."""
        if what != "kill":
            await self._on_link(fault, what)
            return
        database = self._fleet.database
        assert database is not None
        async with self._database_busy:
            await asyncio.to_thread(database.kill)
            self._note(fault)
            await asyncio.sleep(fault.seconds)
            await asyncio.to_thread(database.start)

    async def _on_client(self, fault: PlannedFault, what: str) -> None:
        if fault.name == "stalled_reader":
            await self._stall(fault.seconds)
            self._note(fault)
        else:
            await self._on_link(fault, what)

    async def _start(self, member: Member) -> None:
        begun = now()
        try:
            await member.start()
        except AssertionError as error:
            late = error
            while member.running and self._was_away(member, begun):
                # It runs, but had no scheduler to connect to.
                begun = now()
                try:
                    await member.wait_until_started()
                    return
                except AssertionError as again:
                    late = again
            self.findings.append(f"{member.name} does not start: {late}")
            member.close()

    def _was_away(self, member: Member, since: float) -> bool:
        """Whether the scheduler, which the other processes need, was away since then."""
        return member is not self._fleet.members["scheduler"] and self._scheduler_back > since

    def _note(self, fault: PlannedFault) -> None:
        """Counts a fault that took place."""
        self.performed[fault.name] += 1

    def _record(self, fault: PlannedFault, start: float, lingers: float) -> None:
        # Disks and clocks excuse nothing. The journal says when the scheduler was away and when it could not write; the
        # rules say what follows from both.
        if fault.name in _CANNOT_WRITE:
            self._journal.add(Fault(DISK, fault.name, start, now()))
        if fault.name.startswith("clock") or (fault.target == "scheduler" and fault.name not in _AWAY):
            return
        self._journal.add(Fault(fault.target, fault.name, start, now(), lingers))
