"""What the figures were measured on, and how quiet it was."""

import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

QUIET_CORES = 0.3
"""A machine on which others use no more than this is quiet."""
_GLANCE_SECONDS = 0.3


def facts(packages: Iterable[str]) -> dict[str, str | int | float]:
    """One flat table; packages that are not installed are left out."""
    found: dict[str, str | int | float] = {
        "date": datetime.now().astimezone().isoformat(timespec="minutes"),
        "cores": os.cpu_count() or 0,
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
    """Cores in use during a glance; a run that starts after it finds this much in its way."""
    read = stat or (lambda: Path("/proc/stat").read_text(encoding="ascii"))
    try:
        before = _busy_and_total(read())
    except OSError:
        return os.getloadavg()[0]
    pause(_GLANCE_SECONDS)
    after = _busy_and_total(read())
    total = after[1] - before[1]
    return (after[0] - before[0]) / total * (os.cpu_count() or 1) if total > 0 else 0.0


def wait_until_quiet(
    limit_seconds: float, busy: Callable[[], float] = busy_cores, pause: Callable[[float], None] = time.sleep
) -> float:
    """Cores in use when the wait ended, by quiet or by the limit."""
    deadline = time.monotonic() + limit_seconds
    while (cores := busy()) > QUIET_CORES and time.monotonic() < deadline:
        pause(1.0)
    return cores


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
