import sys

import numpy as np
import pytest

from parlmesh.api.offline_data import record_episodes
from parlmesh.api.policy import TrainedPolicy
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.types import ActionSpec

LIMITED = {"id": "CartPole-v1", "wrappers": {"TimeLimit": {"max_episode_steps": 5}}}


def policy():
    spec = PolicySpec((4,), ActionSpec("discrete", (2,)), hidden=(8,))
    return TrainedPolicy(pack_policy(spec, DenseActorCritic(spec, np.random.default_rng(0)).named_weights()), LIMITED)


def test_episodes_become_a_data_set_that_minari_reads(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert record_episodes(policy(), "cartpole/short-v0", episodes=3) == 15
    found = minari.load_dataset("cartpole/short-v0")
    assert (found.total_episodes, found.total_steps) == (3, 15)
    for episode in found.iterate_episodes():
        assert episode.observations.shape == (6, 4)
        assert episode.truncations.tolist() == [False] * 4 + [True]
        np.testing.assert_array_equal(episode.actions, policy().act(episode.observations[:-1]))
    with pytest.raises(AlreadyExists, match="data set 'cartpole/short-v0' already exists"):
        record_episodes(policy(), "cartpole/short-v0")
    with pytest.raises(InvalidInput, match="'short' is not a data set name"):
        record_episodes(policy(), "short")


def test_without_minari_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(FailedPrecondition, match=r"pip install parlmesh\[offline\]"):
        record_episodes(policy(), "cartpole/short-v0")
