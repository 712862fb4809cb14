"""A lab with a fleet: an actor on every host, a loop that watches them, and a fault to heal."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from parlmesh.client import ActorState, PARLController
from parlmesh.errors import DeadlineExceeded
from parlmesh.mapek.config import MapekConfig
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.loop import MapekLoop
from parlmesh.mapek.types import Status
from parlmesh.mesh.lab import Lab, Pings, three_ways
from parlmesh.mesh.lab.hosts import LINK_FAULTS, fill
from parlmesh.mesh.lab.lab_topology import ENDS, WAYS
from parlmesh.mesh.lab.system_commands import Relay, command
from parlmesh.processes import ChildSpec, Supervisor, service_command, write_settings

FAULTS = (*LINK_FAULTS, "disk", "cpu")
FULL, BUSY = WAYS[1], WAYS[2]
"""Hosts whose disk or processor the fault uses up."""
PLUGIN = "parlmesh.mapek.plugin:plugin"
CYCLES = 2
_PORT = 50051
_START_SECONDS = 90.0
_DISK = "size=8m"
_PROBES = 4
"""A probe sends three pings; this many probes find a loss of 30 % almost surely."""


@dataclass(slots=True)
class Healing:
    """Measurements from before, during and after the fault."""

    fault: str
    before: Any = None
    during: Any = None
    after: Any = None
    path_before: list[str] = field(default_factory=list)
    path_after: list[str] = field(default_factory=list)
    cycles: int = 0
    """Cycles of the loop until the fault was healed; 0 = it was not."""
    decisions: list[str] = field(default_factory=list)


class FleetInLab:
    """Usable inside its `opened` context."""

    def __init__(self, lab: Lab, controller: PARLController, folder: Path) -> None:
        self.lab, self.controller, self.folder = lab, controller, folder
        self._knowledge = ExitStack()
        self._loops = 0

    @classmethod
    @asynccontextmanager
    async def opened(cls, say: Callable[[str], None]) -> "AsyncIterator[FleetInLab]":
        """Starts hosts, an actor on each, and a scheduler outside of them; removes everything at the end."""
        folder = Path(mkdtemp(prefix="parlmesh-lab-"))
        try:
            async with AsyncExitStack() as stack:
                lab = await stack.enter_async_context(Lab(three_ways()))
                say(f"{len(lab.mesh.nodes)} hosts: {', '.join(lab.mesh.nodes)}; {lab.mesh.cables} links of 50 Mbit/s")
                controller = await stack.enter_async_context(PARLController())
                await controller.initialize(1, actor={"plugins": [PLUGIN]})
                port = int(controller.address.rpartition(":")[2])
                for host in lab.mesh.nodes:
                    await stack.enter_async_context(Relay(lab.namespace(host), _PORT, "127.0.0.1", port))
                supervisor = await stack.enter_async_context(Supervisor(note=say, grace_seconds=2.0))
                await stack.enter_async_context(_disks(folder, lab.mesh.nodes))
                for host in lab.mesh.nodes:
                    _start_actor(supervisor, lab, folder, host)
                await _ready(controller, set(lab.mesh.nodes))
                say("an actor runs on every host")
                fleet = cls(lab, controller, folder)
                with fleet._knowledge:
                    yield fleet
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def heal(self, fault: str, say: Callable[[str], None]) -> Healing:
        """Injects the fault, lets the loop run, and reports the result."""
        found = Healing(fault)
        async with AsyncExitStack() as stack:
            loop = self._loop(fault)
            found.path_before, found.before = await self.lab.trace(*ENDS), await self._measured(fault)
            say(f"before: {self._words(fault, found.before)}; the way is {' → '.join(found.path_before)}")
            quiet = await loop.cycle()
            acted = [decision for node in quiet.nodes for decision in node.decisions if decision.action]
            found.decisions += [f"without a fault: {decision.action} on {decision.node}" for decision in acted]
            stack.push_async_callback(self.lab.route)
            await self._break(fault, stack)
            found.during = await self._measured(fault)
            say(f"{fault}: {self._words(fault, found.during)}")
            for cycle in range(1, CYCLES + 3):
                report = await loop.cycle()
                for decision in (each for node in report.nodes for each in node.decisions):
                    seen = f"{decision.symptom.name} is {decision.symptom.value:.0f}"
                    done = f"{decision.action}: {decision.status}" if decision.kind else "nothing"
                    why = "" if decision.status == Status.WORKED else f" ({decision.reason})"
                    found.decisions.append(f"{decision.node}: {seen} → {done}{why}")
                    if decision.kind:
                        say(f"cycle {cycle}, {found.decisions[-1]}")
                found.after = await self._measured(fault)
                if self._healed(fault, found.after):
                    found.cycles = cycle
                    break
            found.path_after = await self.lab.trace(*ENDS)
            say(f"after: {self._words(fault, found.after)}; the way is {' → '.join(found.path_after)}")
        return found

    def _loop(self, fault: str) -> MapekLoop:
        """A new loop per fault: an old loop would take a recurring symptom for flapping and wait until it settles."""
        config = MapekConfig.model_validate(self._settings(fault))
        return MapekLoop(
            self.controller, config, self._knowledge.enter_context(Knowledge(self.folder / f"{config.name}.sqlite"))
        )

    async def _measured(self, fault: str) -> Any:
        if fault == "disk":
            usage = shutil.disk_usage(self._disk)
            return usage.used / usage.total
        if fault == "cpu":
            return await asyncio.to_thread(_running, self._eater)
        return await self.lab.ping(*ENDS)

    @staticmethod
    def _words(fault: str, measured: Any) -> str:
        if isinstance(measured, Pings):
            return f"{measured.loss:.0%} of {measured.sent} pings lost, {measured.mean_ms:.1f} ms on average"
        return f"the disk is {measured:.0%} full" if fault == "disk" else f"{measured} processes eat the processor"

    @staticmethod
    def _healed(fault: str, measured: Any) -> bool:
        if isinstance(measured, Pings):
            return measured.loss <= 0.02 and measured.mean_ms < 50.0
        return bool(measured < 0.5)

    async def _break(self, fault: str, stack: AsyncExitStack) -> None:
        if fault == "disk":
            await asyncio.to_thread(fill, self._disk)
        elif fault == "cpu":
            # A distinct name, like that of a runaway program.
            (self.folder / self._eater).symlink_to(shutil.which("yes") or "/usr/bin/yes")
            words = ("ip", "netns", "exec", self.lab.namespace(BUSY), "nice", "-n", "19")
            process = await asyncio.create_subprocess_exec(
                *words, str(self.folder / self._eater), stdout=asyncio.subprocess.DEVNULL
            )
            stack.push_async_callback(_ended, process)
            await asyncio.to_thread(_wait_for, self._eater)
        else:
            await self.lab.fault(fault, ENDS[0], WAYS[0])
            stack.push_async_callback(self.lab.repair)

    @property
    def _disk(self) -> Path:
        return self.folder / "disks" / FULL

    @property
    def _eater(self) -> str:
        return f"eater-{BUSY}"

    def _settings(self, fault: str) -> dict[str, Any]:
        """Settings of a loop for this fault: both ends watch their paths to each other, or a host watches itself."""
        self._loops += 1
        # Short leases: the next fault uses a new loop, which needs the hosts soon.
        common = {"name": f"lab-{self._loops}", "dry_run": False, "node_seconds": 30.0, "lease_seconds": 1.0}
        if fault not in LINK_FAULTS:
            return {**common, "nodes": [FULL if fault == "disk" else BUSY], **self._own_fault(fault)}
        address = self.lab.addresses.nodes
        neighbours = {f"{end}.{probe}": f"ping://{address[end]}" for end in ENDS for probe in range(_PROBES)}
        actions: dict[str, Any] = {}
        rules = []
        for end in ENDS:
            names = []
            for way in WAYS[1:]:
                names.append(f"to-{end}-over-{way}")
                actions[names[-1]] = {
                    "kind": "route",
                    "parameters": {"destination": address[end], "via": address[way]},
                    "disruptive": False,
                    "timeout_seconds": 5.0,
                    # The other end needs time to change its own route.
                    "verify": {"after_seconds": 3.0},
                    "expected": f"packets to {end} go over {way}",
                }
            rules += [
                {"symptom": f"{metric}.{end}*", "actions": names, "cooldown_seconds": 5.0}
                for metric in ("loss_percent", "rtt_ms")
            ]
        thresholds = [
            {"metric": "loss_percent.*", "above": 1.6, "clear": 0.5, "clear_cycles": 1, "severity": "critical"},
            {"metric": "rtt_ms.*", "above": 87, "clear": 70, "clear_cycles": 1},
        ]
        return {
            **common,
            "nodes": list(ENDS),
            "probes": {"neighbours": neighbours},
            "thresholds": thresholds,
            "rules": rules,
            "actions": actions,
        }

    def _own_fault(self, fault: str) -> Mapping[str, Any]:
        if fault == "disk":
            return {
                "probes": {"disks": [str(self._disk)]},
                "thresholds": [{"metric": "disk_percent", "above": 90, "clear": 85, "severity": "critical"}],
                "rules": [{"symptom": "disk_percent", "actions": ["clear-cache"]}],
                "actions": {"clear-cache": {"kind": "clear_folder", "parameters": {"folder": str(self._disk)}}},
            }
        return {
            "probes": {"services": [self._eater]},
            "thresholds": [{"metric": f"service.{self._eater}", "above": 0.5}],
            "rules": [{"symptom": f"service.{self._eater}", "actions": ["end-it"]}],
            "actions": {"end-it": {"kind": "restart_process", "parameters": {"name": self._eater}}},
        }


def _start_actor(supervisor: Supervisor, lab: Lab, folder: Path, host: str) -> None:
    allowed = folder / f"{host}-mapek.yaml"
    permits = {"route": ["*"], "clear_folder": [str(folder / "disks" / host)], "restart_process": [f"eater-{host}"]}
    write_settings(allowed, {"state": str(folder / f"{host}-state"), "allow": permits})
    file = folder / f"{host}.yaml"
    settings = {
        "actor_id": host,
        "node_id": host,
        "scheduler": f"127.0.0.1:{_PORT}",
        "plugins": [PLUGIN],
        "slots": 4,
        "metrics": {"port": None},
        "limits": {"drain_seconds": 0.5},
    }
    write_settings(file, settings)
    words = ["ip", "netns", "exec", lab.namespace(host), "env", f"PARLMESH_MAPEK_NODE={allowed}"]
    path = os.environ.get("PYTHONPATH", os.getcwd())
    words += [f"PYTHONPATH={path}", *service_command("actor", file)]
    supervisor.start(ChildSpec(host, lambda _: words, folder / f"{host}.log"))


async def _ready(controller: PARLController, hosts: set[str]) -> None:
    try:
        async with asyncio.timeout(_START_SECONDS):
            while True:
                actors = await controller.list_actors()
                if hosts <= {actor.node_id for actor in actors if actor.state == ActorState.READY}:
                    return
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise DeadlineExceeded(f"not every host had its actor within {_START_SECONDS:g} s") from None


@asynccontextmanager
async def _disks(folder: Path, hosts: tuple[str, ...]) -> AsyncIterator[None]:
    """Mounts a small file system for every host."""
    made: list[Path] = []
    try:
        for host in hosts:
            place = folder / "disks" / host
            place.mkdir(parents=True)
            await command("mount", "-t", "tmpfs", "-o", _DISK, "parlmesh-lab", str(place))
            made.append(place)
        yield
    finally:
        for place in made:
            await command("umount", "--lazy", str(place))


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def _wait_for(name: str) -> None:
    """Waits until the started program appears under its name."""
    until = time.monotonic() + 10.0
    while not _running(name) and time.monotonic() < until:
        time.sleep(0.05)


def _running(name: str) -> int:
    import psutil

    alive = (each for each in psutil.process_iter(["name", "status"]) if each.info["status"] != psutil.STATUS_ZOMBIE)
    return sum(each.info["name"] == name for each in alive)
