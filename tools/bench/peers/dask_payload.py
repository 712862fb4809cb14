"""Sends the same arrays over Dask distributed with two worker processes; one `scatter` for many tasks."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import logging
import resource
import time

import numpy as np

STEP = 4096 // 8


def echo(array):
    return array


def negated(array):
    return -array


def touched(array, index):
    return float(array[::STEP].sum()) + index


def arrays_of(megabytes: float, count: int):
    rng = np.random.default_rng()
    return [rng.random(int(megabytes * 125_000)) + 1.0 for _ in range(count)]


def megabytes_per_second(client, function, arrays) -> float:
    started = time.perf_counter()
    count = sum(float(array[-1]) != 0.0 for array in client.gather(client.map(function, arrays, pure=False)))
    assert count == len(arrays)
    return sum(array.nbytes for array in arrays) / 1e6 / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    scale = parser.parse_args().scale
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=logging.ERROR,
    )
    found = {}
    with cluster, distributed.Client(cluster) as client:
        for megabytes, count in ((1, 200), (10, 40)):
            for name, function in (("echo", echo), ("new", negated)):
                megabytes_per_second(client, function, arrays_of(megabytes, 8))
                rate = megabytes_per_second(client, function, arrays_of(megabytes, max(8, int(count * scale))))
                found[f"{name}_{megabytes}mb_per_second"] = rate
        for name, megabytes, tasks in (("shared_40mb_seconds", 40, int(200 * scale)), ("large_1gb_seconds", 1000, 1)):
            (array,) = arrays_of(megabytes, 1)
            started = time.perf_counter()
            reference = client.scatter(array, broadcast=tasks > 1)
            calls = [client.submit(touched, reference, index, pure=False) for index in range(tasks)]
            answers = client.gather(calls)
            found[name] = time.perf_counter() - started
            assert len(answers) == tasks
            del array, reference, calls
    whose = {"client_peak_mb": resource.RUSAGE_SELF, "worker_peak_mb": resource.RUSAGE_CHILDREN}
    peaks = {name: resource.getrusage(who).ru_maxrss / 1000 for name, who in whose.items()}
    print(json.dumps(found | peaks | {"version": distributed.__version__}), flush=True)


if __name__ == "__main__":
    main()
