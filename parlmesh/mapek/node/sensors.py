"""The node's own metrics, read with psutil. Rates are over the time since the last reading."""

import os
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

FIRST_SECONDS = 0.1
"""Time between the first two readings of a new sensor."""


class Counters(NamedTuple):
    """Counters that only grow."""

    time: float
    busy: float
    total: float
    disk_read: float
    disk_write: float
    received: float
    sent: float
    packets: float
    dropped: float


@dataclass
class Sensors:
    """Keeps the last reading, from which the next computes rates."""

    last: Counters | None = None

    def first(self) -> bool:
        """Takes a first reading if there is none; True tells the caller to wait FIRST_SECONDS."""
        if self.last is not None:
            return False
        self.last = _counters()
        return True

    def read(self, disks: tuple[str, ...], services: tuple[str, ...]) -> tuple[dict[str, float], dict[str, str]]:
        """Metrics by name, and unreadable ones with the reason."""
        import psutil

        before, now = self.last or _counters(), _counters()
        self.last = now
        seconds = max(now.time - before.time, 1e-6)
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        packets = now.packets - before.packets
        metrics = {
            "cpu_percent": 100.0 * (now.busy - before.busy) / max(now.total - before.total, 1e-9),
            "load_per_core": os.getloadavg()[0] / (os.cpu_count() or 1),
            "memory_percent": float(memory.percent),
            "swap_percent": float(swap.percent),
            "disk_read_bytes": (now.disk_read - before.disk_read) / seconds,
            "disk_write_bytes": (now.disk_write - before.disk_write) / seconds,
            "network_receive_bytes": (now.received - before.received) / seconds,
            "network_send_bytes": (now.sent - before.sent) / seconds,
            "network_drop_percent": 100.0 * (now.dropped - before.dropped) / packets if packets > 0 else 0.0,
        }
        metrics["cpu_percent"] = min(max(metrics["cpu_percent"], 0.0), 100.0)
        missing: dict[str, str] = {}
        full = []
        for folder in disks:
            try:
                full.append(float(psutil.disk_usage(folder).percent))
            except OSError as error:
                missing[f"disk_percent {folder}"] = error.strerror or str(error)
        if full:
            metrics["disk_percent"] = max(full)
        if services:
            running = _running(services)
            metrics |= {f"service.{name}": float(running.get(name, 0)) for name in services}
        return metrics, missing


def _counters() -> Counters:
    import psutil

    cpu: Any = psutil.cpu_times()
    total = float(sum(cpu) - getattr(cpu, "guest", 0.0) - getattr(cpu, "guest_nice", 0.0))
    idle = float(cpu.idle + getattr(cpu, "iowait", 0.0))
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
    return Counters(
        time.monotonic(),
        total - idle,
        total,
        float(disk.read_bytes) if disk else 0.0,
        float(disk.write_bytes) if disk else 0.0,
        float(network.bytes_recv) if network else 0.0,
        float(network.bytes_sent) if network else 0.0,
        float(network.packets_recv + network.packets_sent) if network else 0.0,
        float(network.dropin + network.dropout) if network else 0.0,
    )


def _running(services: tuple[str, ...]) -> dict[str, int]:
    import psutil

    counts: dict[str, int] = {}
    for process in psutil.process_iter(["name", "status"]):
        name = process.info["name"]
        if name in services and process.info["status"] != psutil.STATUS_ZOMBIE:
            counts[name] = counts.get(name, 0) + 1
    return counts
