"""Sends the same arrays over Ray on two cores: echoes, new arrays, one `ray.put` for many tasks, a very large one."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import os
import resource
import time

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_DEDUP_LOGS="0")

import numpy as np
import ray

STEP = 4096 // 8


@ray.remote
def echo(array):
    return array


@ray.remote
def negated(array):
    return -array


@ray.remote
def touched(array, index):
    return float(array[::STEP].sum()) + index


def megabytes_per_second(function, arrays) -> float:
    started = time.perf_counter()
    count = sum(float(array[-1]) != 0.0 for array in ray.get([function.remote(array) for array in arrays]))
    assert count == len(arrays)
    return sum(array.nbytes for array in arrays) / 1e6 / (time.perf_counter() - started)


def arrays_of(megabytes: float, count: int):
    rng = np.random.default_rng()
    return [rng.random(int(megabytes * 125_000)) + 1.0 for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    scale = parser.parse_args().scale
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level="ERROR",
        object_store_memory=4 << 30,
        log_to_driver=False,
    )
    found = {}
    for megabytes, count in ((1, 200), (10, 40)):
        for name, function in (("echo", echo), ("new", negated)):
            megabytes_per_second(function, arrays_of(megabytes, 8))
            rate = megabytes_per_second(function, arrays_of(megabytes, max(8, int(count * scale))))
            found[f"{name}_{megabytes}mb_per_second"] = rate
    for name, megabytes, tasks in (("shared_40mb_seconds", 40, int(200 * scale)), ("large_1gb_seconds", 1000, 1)):
        (array,) = arrays_of(megabytes, 1)
        started = time.perf_counter()
        reference = ray.put(array)
        answers = ray.get([touched.remote(reference, index) for index in range(tasks)])
        found[name] = time.perf_counter() - started
        assert len(answers) == tasks
        del array, reference
    ray.shutdown()
    whose = {"client_peak_mb": resource.RUSAGE_SELF, "worker_peak_mb": resource.RUSAGE_CHILDREN}
    peaks = {name: resource.getrusage(who).ru_maxrss / 1000 for name, who in whose.items()}
    print(json.dumps(found | peaks | {"version": ray.__version__}), flush=True)


if __name__ == "__main__":
    main()
