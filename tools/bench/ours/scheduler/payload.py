"""Arrays to two actor processes and back: echoes, new arrays, one array for many tasks, and a very large one."""

import argparse
import json
import resource
import time
from typing import Any

import numpy as np

import parlmesh
from parlmesh.client.sync import Controller
from parlmesh.types import Array

WORKERS = 2
# One element of every page.
STEP = 4096 // 8


@parlmesh.task
def echo(array: Array) -> Array:
    """Returns the same array."""
    return array


@parlmesh.task
def negated(array: Array) -> Array:
    """Another array of the same size."""
    return -array


@parlmesh.task
def touched(array: Array, index: int) -> float:
    """Reads something of every page."""
    return float(array[::STEP].sum()) + index


def megabytes_per_second(fleet: Any, function: Any, arrays: list[Array]) -> float:
    started = time.perf_counter()
    count = sum(float(array[-1]) != 0.0 for array in fleet.map(function, arrays))
    assert count == len(arrays)
    return sum(array.nbytes for array in arrays) / 1e6 / (time.perf_counter() - started)


def arrays_of(megabytes: float, count: int) -> list[Array]:
    rng = np.random.default_rng()
    return [rng.random(int(megabytes * 125_000)) + 1.0 for _ in range(count)]


def measure(fleet: Any, scale: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for megabytes, count in ((1, 200), (10, 40)):
        for name, function in (("echo", echo), ("new", negated)):
            megabytes_per_second(fleet, function, arrays_of(megabytes, 8))
            rate = megabytes_per_second(fleet, function, arrays_of(megabytes, max(8, int(count * scale))))
            found[f"{name}_{megabytes}mb_per_second"] = rate
    for name, megabytes, tasks in (("shared_40mb_seconds", 40, int(200 * scale)), ("large_1gb_seconds", 1000, 1)):
        (array,) = arrays_of(megabytes, 1)
        started = time.perf_counter()
        reference = fleet.put(array)
        answers = list(fleet.map(touched, [reference] * tasks, range(tasks)))
        found[name] = time.perf_counter() - started
        assert len(answers) == tasks
        del array, reference
    return found


def peak_megabytes() -> dict[str, float]:
    """Peak size of this process and of the largest one it started, including shared memory."""
    whose = {"client_peak_mb": resource.RUSAGE_SELF, "worker_peak_mb": resource.RUSAGE_CHILDREN}
    return {name: resource.getrusage(who).ru_maxrss / 1000 for name, who in whose.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tasks")
    arguments = parser.parse_args()
    with Controller() as fleet:
        fleet.initialize(WORKERS, processes=WORKERS)
        found = measure(fleet, arguments.scale)
    print(json.dumps(found | peak_megabytes()), flush=True)


if __name__ == "__main__":
    main()
