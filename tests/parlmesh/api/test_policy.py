"""A policy in a program: saved, loaded and used."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict

from parlmesh.api.episodes import evaluate_policy
from parlmesh.api.policy import TrainedPolicy, load_policy
from parlmesh.api.run_follower import Follower
from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput
from parlmesh.local.process_configs import UpConfig
from parlmesh.policies import PolicySpec, pack_policy, unpack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.types import ActionSpec
from parlmesh.v1 import training_service_pb2 as pb


def policy(size: int, environment: dict[str, Any] | None = None) -> TrainedPolicy:
    spec = PolicySpec((size,), ActionSpec("discrete", (2,)), hidden=(8,))
    weights = DenseActorCritic(spec, np.random.default_rng(0)).named_weights()
    return TrainedPolicy(pack_policy(spec, weights), environment)


@pytest.mark.parametrize(
    ("size", "environment"),
    [
        (12, {"id": "CartPole-v1", "stacked": 3}),
        (2, {"id": "CartPole-v1", "observed": [0, 2]}),
        (4, {"id": "CartPole-v1", "wrappers": {"TimeLimit": {"max_episode_steps": 9}}}),
    ],
)
def test_a_saved_policy_knows_its_environment_and_what_it_observes_of_it(
    size: int, environment: dict[str, Any], tmp_path: Path
) -> None:
    made = policy(size, environment)
    found = load_policy(made.save(tmp_path / "one.safetensors"))
    assert found.environment == environment
    assert found.act(np.zeros(4)) == policy(size, environment).act(np.zeros(4))
    assert len(evaluate_policy(found, episodes=2).returns) == 2
    assert unpack_policy((tmp_path / "one.safetensors").read_bytes())[0] == made.spec


def test_a_policy_without_an_environment_is_saved_as_it_is(tmp_path: Path) -> None:
    assert load_policy(policy(4).save(tmp_path / "one.safetensors")).environment == {}


def test_the_policy_of_a_run_observes_what_its_environment_shows() -> None:
    told = pb.Training()
    ParseDict({"environment": {"id": "CartPole-v1", "observed": [0, 2], "stacked": 2}}, told.configuration)
    follower = Follower.remote(UpConfig(), "localhost:1", "one")
    environment = follower._report(told).environment
    assert policy(4, environment).act(np.zeros(4)) in (0, 1)
    assert {type(each) for each in [environment["stacked"], *environment["observed"]]} == {int}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: load_policy(3), "source is 3; it must be a run, its folder, or a .safetensors file"),  # type: ignore[arg-type]
        (lambda: evaluate_policy("x"), "policy is 'x'; load it with parlmesh.load_policy"),  # type: ignore[arg-type]
        (lambda: evaluate_policy(policy(4), "CartPole-v1", episodes=0), "episodes is 0; it must be 1 or more"),
        (
            lambda: evaluate_policy(policy(4), "Acrobot-v1"),
            r"'Acrobot-v1' has observations of the shape \[6\]; the policy was trained on the shape \[4\]",
        ),
        (
            lambda: evaluate_policy(policy(3), "Pendulum-v1"),
            r"'Pendulum-v1' has 1 continuous actions; the policy was trained on \[2\] discrete",
        ),
        (lambda: evaluate_policy(policy(4)), "name it: environment=, or --environment"),
    ],
)
def test_what_is_no_policy_or_does_not_fit_is_refused_by_name(call: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        call()


def test_a_file_that_is_no_policy_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text("print('a program')\n" * 9)
    with pytest.raises(FleetError, match=r"d\.py is not a policy; load_policy reads a run's folder"):
        load_policy(tmp_path / "d.py")
    with pytest.raises(FailedPrecondition, match=r"nodir/one\.safetensors cannot be written: No such file"):
        policy(4).save(tmp_path / "nodir/one.safetensors")


def test_a_policy_that_is_not_finite_or_lacks_its_statistics_is_refused_by_the_name_of_the_tensor() -> None:
    spec = PolicySpec((3,), ActionSpec("discrete", (2,)), hidden=(8,))
    weights = DenseActorCritic(spec, np.random.default_rng(0)).named_weights()
    name = min(weights)
    with pytest.raises(InvalidInput, match=f"policy tensor {name} has values that are not finite"):
        TrainedPolicy(pack_policy(spec, {**weights, name: np.full_like(weights[name], np.nan)}))
    with pytest.raises(InvalidInput, match=r"policy has no tensor normaliser\.mean of 3 numbers"):
        TrainedPolicy(pack_policy(replace(spec, normalised=True), weights))


def test_a_policy_says_what_it_is() -> None:
    assert repr(policy(2, {"id": "CartPole-v1"})) == "<policy for CartPole-v1: mlp, observes [2]>"
