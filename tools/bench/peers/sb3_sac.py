"""Trained steps per second of stable-baselines3's SAC on Pendulum-v1, on the CPU, in one process."""

# mypy: ignore-errors
# Runs in the peer's venv, whose packages are unknown to ours.

import argparse
import json
import time

import stable_baselines3
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback

WARM_UP = 1_000


class Clock(BaseCallback):
    """Starts at the first step that learns."""

    def _on_step(self):
        if self.num_timesteps == WARM_UP + 1:
            self.started, self.cpu = time.perf_counter(), time.process_time()
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1, help="of torch; 1 is the faster choice here")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    # Its defaults: networks of 256 and 256, minibatches of 256, a gradient step per step, a learned temperature.
    model = SAC("MlpPolicy", "Pendulum-v1", device="cpu", seed=arguments.seed, learning_starts=WARM_UP)
    clock = Clock()
    model.learn(arguments.steps + WARM_UP, callback=clock)
    wall, cpu = time.perf_counter() - clock.started, time.process_time() - clock.cpu
    steps = model.num_timesteps - WARM_UP - 1
    assert model.batch_size == 256
    assert [layer.out_features for layer in model.actor.latent_pi if hasattr(layer, "out_features")] == [256, 256]
    assert abs(model._n_updates - steps) <= 2
    result = {
        "steps_per_second": steps / wall,
        "steps_per_cpu_second": steps / cpu,
        "torch_threads": torch.get_num_threads(),
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
