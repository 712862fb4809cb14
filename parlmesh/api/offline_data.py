"""Records whole episodes of a policy as an offline data set in Minari's format."""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from parlmesh.environments import single_environment
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput

from .episodes import known_environment
from .policy import TrainedPolicy


def record_episodes(
    policy: TrainedPolicy,
    dataset_id: str,
    environment: Mapping[str, Any] | str = "",
    *,
    episodes: int = 20,
    seed: int = 0,
    sampled: bool = False,
) -> int:
    """Runs episodes and saves them as a data set, e.g. cartpole/expert-v0; returns its number of steps.

    The data set is saved in Minari's folder ($MINARI_DATASETS_PATH); `minari.load_dataset(dataset_id)` reads it.
    """
    minari = check_dataset(dataset_id)
    described = known_environment(policy, environment)
    world = single_environment(described)
    try:
        if world.observation_space.shape is None or world.action_space.shape is None:
            raise InvalidInput(
                f"a data set needs observations and actions that are arrays; {described['id']} has others"
            )
        buffer = [_episode(minari, policy, world, number, seed + number, sampled) for number in range(episodes)]
        with warnings.catch_warnings():
            # Minari warns about every omitted detail (author, evaluation environment).
            warnings.simplefilter("ignore", UserWarning)
            minari.create_dataset_from_buffers(
                dataset_id,
                buffer=buffer,
                env=world,
                algorithm_name="parlmesh",
                description=f"{episodes} episodes of {described['id']}, seed {seed}",
            )
    finally:
        world.close()
    return sum(len(each.rewards) for each in buffer)


def check_dataset(dataset_id: str) -> Any:
    """The minari package, after checking the name and that the data set can be written."""
    try:
        importlib.import_module("h5py")  # minari writes with it, and imports it only then
        import minari
        from minari.dataset.minari_dataset import parse_dataset_id
    except ImportError as error:
        message = f"a data set needs a package that is not installed here ({error}): pip install parlmesh[offline]"
        raise FailedPrecondition(message, reason="NOT_INSTALLED") from error
    try:
        parse_dataset_id(dataset_id)
    except (TypeError, ValueError) as error:
        message = f"{dataset_id!r} is not a data set name; use one like cartpole/expert-v0"
        raise InvalidInput(message, reason="INVALID_NAME") from error
    if dataset_id in minari.list_local_datasets():
        raise AlreadyExists(f"data set {dataset_id!r} already exists; choose another name")
    return minari


def _episode(minari: Any, policy: TrainedPolicy, world: Any, number: int, seed: int, sampled: bool) -> Any:
    observation, _ = world.reset(seed=seed)
    policy.reset()
    observations, actions = [observation], []
    rewards: list[float] = []
    terminations: list[bool] = []
    truncations: list[bool] = []
    while not (terminations and (terminations[-1] or truncations[-1])):
        action = policy.act(observation, deterministic=not sampled)
        observation, reward, terminated, truncated, _ = world.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(float(reward))
        terminations.append(bool(terminated))
        truncations.append(bool(truncated))
    return minari.data_collector.EpisodeBuffer(
        id=number,
        seed=seed,
        observations=np.array(observations),
        actions=np.array(actions),
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
    )
