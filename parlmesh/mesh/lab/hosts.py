"""Hosts of a lab, their links, injected faults, and measurements with real packets.

A host is a network namespace with one address on all its links. netem delays need a kernel module that many machines
lack, so a slow link is a low-bandwidth one: a token bucket in which packets wait.
"""

import asyncio
import os
import re
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mesh.graph import Graph
from parlmesh.mesh.ip_routes import Addresses, ip_routes, own_addresses
from parlmesh.mesh.measured_mesh import Mesh
from parlmesh.mesh.path_distances import all_distances
from parlmesh.mesh.routes import RoutingTable, next_hops

from .system_commands import command

TOOLS = ("ip", "tc", "iptables", "ping", "traceroute")
SUBNET = "10.77.0.0/24"
LINK_FAULTS = ("loss", "latency", "dead")
NARROW = "8kbit"
"""The rate of a link with the fault latency: packets wait in its queue for up to three seconds."""
_RECEIVED = re.compile(r"(\d+) packets transmitted, (\d+) received")
_HOP = re.compile(r"^\s*\d+\s+(\d+\.\d+\.\d+\.\d+)", re.MULTILINE)
_MEAN = re.compile(r"= [0-9.]+/([0-9.]+)/")


@dataclass(frozen=True, slots=True)
class Pings:
    """The result of a series of pings."""

    sent: int
    received: int
    mean_ms: float
    """Mean round trip of the received ones; 0 when none came back."""

    @property
    def loss(self) -> float:
        """Share of lost pings."""
        return 1.0 - self.received / self.sent if self.sent else 1.0


def lacking() -> str:
    """Why a lab cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"these programs are missing: {', '.join(missing)}" if missing else ""


class Lab:
    """A mesh as namespaces, for the duration of an `async with`. Everything it creates has a unique name."""

    def __init__(self, mesh: Mesh) -> None:
        if len(mesh.nodes) > 16 or any(re.fullmatch(r"[a-z][a-z0-9]{0,7}", node) is None for node in mesh.nodes):
            raise InvalidInput("a lab has up to 16 hosts, with names of up to 8 lowercase letters and digits")
        self.mesh = mesh
        self.addresses: Addresses = own_addresses(mesh.nodes, SUBNET)
        self._name = f"pm{secrets.token_hex(2)}"
        self._made: list[str] = []

    def namespace(self, host: str) -> str:
        """A host's name for `ip netns`."""
        return f"{self._name}-{host}"

    async def __aenter__(self) -> "Lab":
        trouble = lacking()
        if trouble:
            raise FailedPrecondition(f"a lab cannot run here: {trouble}", reason="NO_PRIVILEGES")
        try:
            await self._make()
        except BaseException:
            await self._remove()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._remove()

    async def inside(self, host: str, *words: str, seconds: float = 20.0) -> str:
        """Runs a command on a host."""
        return await command("ip", "netns", "exec", self.namespace(host), *words, seconds=seconds)

    async def route(self) -> None:
        """Sets every host's best routes without faults; directly connected neighbours already have one."""
        graph = Graph.of(self.mesh)
        distance = all_distances(graph)
        table = RoutingTable(self.mesh.nodes, "auto", distance, next_hops(graph, distance))
        for host in self.mesh.nodes:
            for line in ip_routes(table, host, self.addresses):
                words = line.split()
                if words[-2] != "via" or words[-1] != words[3].partition("/")[0]:
                    await self.inside(host, *words)

    async def fault(self, kind: str, here: str, there: str) -> None:
        """Breaks the link between two hosts in both directions: 30 % loss, slow, or dead."""
        if kind not in LINK_FAULTS:
            raise InvalidInput(f"a fault of a link is one of {', '.join(LINK_FAULTS)}, got {kind!r}")
        for host, other in ((here, there), (there, here)):
            device = _device(other)
            if kind == "latency":
                await self.inside(host, *_bucket("replace", device, NARROW, "3s"))
                continue
            share = ("-m", "statistic", "--mode", "random", "--probability", "0.3") if kind == "loss" else ()
            await self.inside(host, "iptables", "-t", "mangle", "-A", "PREROUTING", "-i", device, *share, "-j", "DROP")

    async def dropped(self, host: str) -> int:
        """Packets that faults have dropped on a host."""
        listed = await self.inside(host, "iptables", "-t", "mangle", "-L", "PREROUTING", "-v", "-n", "-x")
        return sum(int(line.split()[0]) for line in listed.splitlines() if " DROP " in line)

    async def repair(self) -> None:
        """Removes all link faults."""
        for host in self.mesh.nodes:
            await self.inside(host, "iptables", "-t", "mangle", "-F", "PREROUTING")
        for host, other in self._pairs():
            await self.inside(host, *_bucket("replace", _device(other), "50mbit", "50ms"))

    async def ping(self, here: str, there: str, count: int = 50, interval: float = 0.05) -> Pings:
        """Sends real pings."""
        words = ("ping", "-n", "-q", "-c", str(count), "-i", f"{interval:g}", "-W", "3", self.addresses.nodes[there])
        output = await self.inside(here, *words, seconds=count * interval + 15.0)
        found, mean = _RECEIVED.search(output), _MEAN.search(output)
        if found is None:
            raise FailedPrecondition(f"ping from {here} to {there} printed {output.strip()[:200]!r}")
        return Pings(int(found[1]), int(found[2]), float(mean[1]) if mean else 0.0)

    async def trace(self, here: str, there: str) -> list[str]:
        """Hosts along the path, as traceroute finds them."""
        words = ("traceroute", "-n", "-q", "1", "-w", "1", "-m", "8", self.addresses.nodes[there])
        output = await self.inside(here, *words, seconds=20.0)
        name = {address: host for host, address in self.addresses.nodes.items()}
        return [here, *(name.get(address, address) for address in _HOP.findall(output))]

    async def _make(self) -> None:
        for host in self.mesh.nodes:
            await command("ip", "netns", "add", self.namespace(host))
            self._made.append(host)
            await self.inside(host, "ip", "link", "set", "lo", "up")
            # Allow forwarding and asymmetric paths.
            for key, value in (("ip_forward", "1"), ("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0")):
                await self.inside(host, "sh", "-c", f"echo {value} > /proc/sys/net/ipv4/{key}")
            await self.inside(host, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit")
        for host, other in self._pairs():
            if host < other:
                await self._join(host, other)
        await self.route()

    async def _join(self, host: str, other: str) -> None:
        own = (_device(other), "netns", self.namespace(host))
        peer = ("name", _device(host), "netns", self.namespace(other))
        await command("ip", "link", "add", *own, "type", "veth", "peer", *peer)
        for here, there in ((host, other), (other, host)):
            device = _device(there)
            addresses = self.addresses.nodes
            await self.inside(here, "ip", "addr", "add", addresses[here], "peer", addresses[there], "dev", device)
            await self.inside(here, "ip", "link", "set", device, "up")
            await self.inside(here, *_bucket("add", device, "50mbit", "50ms"))

    def _pairs(self) -> list[tuple[str, str]]:
        nodes = self.mesh.nodes
        return sorted({(nodes[link.source], nodes[link.target]) for link in self.mesh.links})

    async def _remove(self) -> None:
        for host in self._made:
            # Deleting a namespace deletes its links.
            with suppress(FailedPrecondition):
                await asyncio.shield(command("ip", "netns", "del", self.namespace(host)))
        self._made.clear()


def _device(other: str) -> str:
    return f"to-{other}"


def _bucket(verb: str, device: str, rate: str, waiting: str) -> tuple[str, ...]:
    # For a narrow link the bucket holds a single frame, so that no burst passes at once.
    burst = "1600" if rate == NARROW else "5k"
    return ("tc", "qdisc", verb, "dev", device, "root", "tbf", "rate", rate, "burst", burst, "latency", waiting)


def fill(folder: Path, share: float = 0.97) -> Path:
    """Writes a file that nearly fills the folder's file system; refuses file systems larger than a lab's."""
    usage = shutil.disk_usage(folder)
    if usage.total > 64 << 20:
        raise InvalidInput(f"{folder} is on a file system of {usage.total} bytes; at most 64 MiB is filled")
    file = folder / "full"
    file.write_bytes(b"\0" * max(0, int(usage.total * share) - usage.used))
    return file
