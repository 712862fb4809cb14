"""Ray on two cores: no-op tasks per second, the round trip of one, and 1,500 tasks of 100 ms on 100 actors."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import os
import time

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0", RAY_DEDUP_LOGS="0")

import ray

AWAKE = "/dev/cpu_dma_latency"
WARM_UP_TASKS = 2000
CROWD, CROWD_TASKS, SLEEP_SECONDS = 100, 1500, 0.1


@ray.remote
def noop(index: int) -> int:
    return index


@ray.remote(num_cpus=0)
class Sleeper:
    def work(self, index: int) -> int:
        time.sleep(SLEEP_SECONDS)
        return index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--trips", type=int, default=1000)
    parser.add_argument("--crowd", action="store_true", help="only the 100 actors")
    parser.add_argument("--awake", action="store_true", help="keep the cores from sleeping")
    arguments = parser.parse_args()
    if arguments.awake:
        # The request holds while the file is open: until this process ends.
        os.write(os.open(AWAKE, os.O_WRONLY), bytes(4))
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        logging_level="ERROR",
        object_store_memory=1 << 30,
        log_to_driver=False,
    )
    result = crowd() if arguments.crowd else noops(arguments.tasks, arguments.trips)
    print(json.dumps(result | {"version": ray.__version__}), flush=True)
    ray.shutdown()


def noops(tasks: int, round_trips: int) -> dict[str, float]:
    ray.get([noop.remote(index) for index in range(WARM_UP_TASKS)])
    started = time.perf_counter()
    answers = ray.get([noop.remote(index) for index in range(tasks)])
    seconds = time.perf_counter() - started
    assert answers == list(range(tasks))
    trips = []
    for index in range(round_trips):
        started = time.perf_counter()
        ray.get(noop.remote(index))
        trips.append((time.perf_counter() - started) * 1e3)
    trips.sort()
    return {
        "tasks_per_second": tasks / seconds,
        "roundtrip_p50_ms": trips[round_trips // 2 - 1],
        "roundtrip_p99_ms": trips[round_trips * 99 // 100 - 1],
    }


def crowd() -> dict[str, float]:
    """Starts 100 processes, which takes half a minute."""
    began = time.perf_counter()
    actors = [Sleeper.remote() for _ in range(CROWD)]
    ray.get([actor.work.remote(0) for actor in actors])
    ready = time.perf_counter()
    answers = ray.get([actors[index % CROWD].work.remote(index) for index in range(CROWD_TASKS)])
    seconds = time.perf_counter() - ready
    assert answers == list(range(CROWD_TASKS))
    return {"fanout_seconds": seconds, "initialize_seconds": ready - began - SLEEP_SECONDS}


if __name__ == "__main__":
    main()
