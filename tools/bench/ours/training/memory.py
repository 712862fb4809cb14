"""Resident memory of a fleet that trains at full speed: where it stands, and how much it grows in an hour."""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from typing import Any

import psutil

from ...ground.slope import slope

NEVER = 10**12
WARM_UP_SHARE = 0.25
LOOK_SECONDS = 0.5
START_SECONDS = 60.0
STOP_SECONDS = 30.0
MEGABYTE = 1e6
SERVICES = ("scheduler", "learner", "actor")


def main(minutes: float, actors: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "parlmesh.cli", "up", "--plain", "--free-ports", "--no-goal"]
        command += ["--runs-dir", folder, "--run-id", "run", "--actors", str(actors), "--steps", str(NEVER)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            return watched(psutil.Process(process.pid), minutes * 60, actors)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def watched(up: psutil.Process, seconds: float, actors: int) -> dict[str, Any]:
    processes = started(up, 2 + actors)
    times: list[float] = []
    sizes: dict[str, list[float]] = defaultdict(list)
    begun = time.monotonic()
    while (now := time.monotonic() - begun) < seconds:
        # The caches of the first minutes are no leak.
        if now > seconds * WARM_UP_SHARE:
            times.append(now / 3600)
            for service in SERVICES:
                mine = [process.memory_info().rss for process in processes if service_of(process) == service]
                sizes[service].append(sum(mine) / len(mine) / MEGABYTE)
        time.sleep(LOOK_SECONDS)
    found: dict[str, Any] = {}
    for service in SERVICES:
        line = slope(times, sizes[service])
        found[f"{service}_mb_per_hour"] = None if line is None else line.value
        found[f"{service}_low"] = None if line is None else line.low
        found[f"{service}_high"] = None if line is None else line.high
        found[f"{service}_mb"] = sizes[service][-1]
    return found


def started(up: psutil.Process, count: int) -> list[psutil.Process]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        found = [child for child in up.children(recursive=True) if service_of(child) in SERVICES]
        if len(found) == count:
            return found
        time.sleep(LOOK_SECONDS)
    raise SystemExit(f"the fleet did not start within {START_SECONDS:.0f} s")


def service_of(process: psutil.Process) -> str:
    """The module behind `-m`, without its package."""
    line = process.cmdline()
    return line[line.index("-m") + 1].rpartition(".")[2] if "-m" in line[:-1] else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--actors", type=int, default=2)
    given = parser.parse_args()
    print(json.dumps(main(given.minutes, given.actors)))
