"""Dask distributed with two worker processes of one thread: no-op tasks per second, and the round trip of one."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import logging
import time

WARM_UP_TASKS = 1000


def noop(index: int) -> int:
    return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--trips", type=int, default=1000)
    arguments = parser.parse_args()
    import distributed

    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        host="127.0.0.1",
        dashboard_address=None,
        silence_logs=logging.ERROR,
    )
    with cluster, distributed.Client(cluster) as client:
        # Equal calls are computed once, so every call must have a different argument.
        client.gather(client.map(noop, range(-WARM_UP_TASKS, 0)))
        started = time.perf_counter()
        answers = client.gather(client.map(noop, range(arguments.tasks)))
        seconds = time.perf_counter() - started
        assert answers == list(range(arguments.tasks))
        trips = []
        for index in range(arguments.trips):
            started = time.perf_counter()
            client.submit(noop, arguments.tasks + index).result()
            trips.append((time.perf_counter() - started) * 1e3)
    trips.sort()
    result = {
        "tasks_per_second": arguments.tasks / seconds,
        "roundtrip_p50_ms": trips[len(trips) // 2 - 1],
        "roundtrip_p99_ms": trips[len(trips) * 99 // 100 - 1],
        "version": distributed.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
