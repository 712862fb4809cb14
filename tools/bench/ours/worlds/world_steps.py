"""Steps a second of a world in one process, with random feasible actions, including observations and masks."""

import argparse
import json
import time

import numpy as np

from parlmesh.environments import Environments
from parlmesh.types import Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", required=True)
    parser.add_argument("--environments", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--kwargs", default="{}", help="JSON")
    arguments = parser.parse_args()
    world = {"id": arguments.world, "kwargs": json.loads(arguments.kwargs)}
    envs = Environments(world, arguments.environments)
    envs.reset(0)
    actions = [chosen(envs, arguments.environments, seed) for seed in range(16)]
    steps, began, busy = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < arguments.seconds:
        for action in actions:
            envs.step(action)
            steps += arguments.environments
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    envs.close()
    speeds = {"steps_per_second": steps / seconds, "steps_per_cpu_second": steps / busy}
    print(json.dumps({**speeds, "environments": arguments.environments}))


def chosen(envs: Environments, count: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    spec = envs.spec.action
    if spec.kind == "discrete":
        return rng.integers(spec.sizes[0], size=count)
    return np.stack([rng.integers(size, size=count) for size in spec.sizes], axis=1)


if __name__ == "__main__":
    main()
