"""The machine on which the figures were measured, and how quiet it was."""

import importlib.metadata
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

QUIET_CORES = 0.3
"""A machine on which other processes use no more than this is quiet."""
_GLANCE_SECONDS = 0.3
_CORES = os.cpu_count() or 1
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def facts(packages: Iterable[str]) -> dict[str, str | int | float]:
    """One flat table; packages that are not installed are left out."""
    found: dict[str, str | int | float] = {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "cores": _CORES,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def busy_cores(stat: Callable[[], str] | None = None, pause: Callable[[float], None] = time.sleep) -> float:
    """Cores in use during a short sample, which are not available to the next run."""
    watch = OthersWatch(stat, own=lambda: 0.0)
    pause(_GLANCE_SECONDS)
    return watch.cores()


class OthersWatch:
    """How many cores other processes use while a child of this process runs and is waited for.

    A child's descendants that were not waited for count as others: the figure may be too high, never too low.
    """

    def __init__(self, stat: Callable[[], str] | None = None, own: Callable[[], float] | None = None) -> None:
        self._stat = stat or _read_stat
        self._own = own or _children_seconds
        self._ticks = _busy_and_total(self._stat())
        self._seconds = self._own()

    def cores(self) -> float:
        """Mean since the start; the time of the child and its children is excluded once they are waited for."""
        busy, total = (now - then for now, then in zip(_busy_and_total(self._stat()), self._ticks, strict=True))
        if total <= 0:
            return 0.0
        elapsed = total / _TICKS_PER_SECOND / _CORES
        return max(0.0, busy / total * _CORES - (self._own() - self._seconds) / elapsed)


def wait_until_quiet(
    limit_seconds: float, busy: Callable[[], float] = busy_cores, pause: Callable[[float], None] = time.sleep
) -> float:
    """Waits for quiet, up to the limit; returns the cores then in use."""
    deadline = time.monotonic() + limit_seconds
    while (cores := busy()) > QUIET_CORES and time.monotonic() < deadline:
        pause(1.0)
    return cores


def _read_stat() -> str:
    """Zeros except on Linux, since nothing is known there."""
    path = Path("/proc/stat")
    return path.read_text(encoding="ascii") if path.exists() else "cpu 0 0 0 0 0 0 0 0"


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy_and_total(stat: str) -> tuple[int, int]:
    """Ticks of all cores together: user nice system idle iowait irq softirq steal; guests are in user already."""
    ticks = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
