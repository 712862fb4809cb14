"""Steps per second of one process that acts and does not train: the collector with the small perceptron."""

import argparse
import json
import os
import time

WARM_UP_FRAGMENTS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environments", type=int, required=True)
    parser.add_argument("--trajectory-steps", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # As in the actor: small matrices are fastest on one thread. Must be set before numpy is imported.
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy as np

    from parlmesh.environments import environment_spec
    from parlmesh.policies import PolicySpec, load_policy, pack_policy
    from parlmesh.policies.numpy_networks import DenseActorCritic
    from parlmesh.rollouts import Collector

    environment = {"id": "CartPole-v1"}
    shapes = environment_spec(environment)
    spec = PolicySpec.for_environment(shapes)
    network = DenseActorCritic(spec, np.random.default_rng(arguments.seed))
    weights = {name: weight for name, weight in network.named_weights().items() if name.startswith("policy.")}
    policy = load_policy(pack_policy(spec, weights))
    collector = Collector(environment, arguments.environments, np.random.SeedSequence(arguments.seed))
    for _ in range(WARM_UP_FRAGMENTS):
        collector.collect(policy, arguments.trajectory_steps)
    steps, started, cpu = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < arguments.seconds:
        steps += collector.collect(policy, arguments.trajectory_steps).valid_steps
    cpu_seconds = time.process_time() - cpu
    collector.close()
    result = {
        "steps_per_second": steps / elapsed,
        "steps_per_cpu_second": steps / cpu_seconds,
        "environments": arguments.environments,
        "layers": spec.layer_sizes,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
