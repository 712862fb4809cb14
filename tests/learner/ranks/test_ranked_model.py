"""Ranks as real processes: what they compute equals what one process computes, and a killed one costs nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.config import LearnerConfig, TrainingConfig
from learner.ranks.rank_processes import Children
from learner.ranks.rank_setup import check_processes, several
from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.training.trainer import Trainer
from parlmesh.types import REWARD, Fragment

UPDATES = 10
PPO = {"hidden": [16, 16], "num_envs": 8, "batch_trajectories": 2, "ppo": {"minibatch_steps": 64, "targets": "vtrace"}}
DQN: dict[str, Any] = {
    "algorithm": "dqn",
    "hidden": [16],
    "dqn": {
        "minibatch_steps": 33,
        "target_interval": 10,
        "target_rate": 0.5,
        "replay": {"min_steps": 100, "samples_per_insert": 4.0},
    },
}
PRIORITISED = {**DQN, "dqn": {**DQN["dqn"], "replay": {**DQN["dqn"]["replay"], "kind": "prioritised"}}}
SAC: dict[str, Any] = {
    "algorithm": "sac",
    "environment": {"id": "Pendulum-v1"},
    "hidden": [16],
    "sac": {"minibatch_steps": 33, "random_steps": 0, "replay": {"min_steps": 100, "samples_per_insert": 4.0}},
}
RECURRENT = {**PPO, "network": "recurrent", "ppo": {"minibatch_steps": 96, "normalise_advantages": "minibatch"}}


@contextmanager
def trained(folder: Path, settings: dict[str, Any], processes: int) -> Iterator[tuple[Trainer, Children | None]]:
    training = TrainingConfig.model_validate({**settings, "processes": processes, "process_seconds": 60.0})
    config = LearnerConfig(training=training, run_dir=folder)
    environment = environment_spec(training.environment.model_dump())
    policy = policy_for(training, environment)
    members, ranked = several(config, policy, 0)
    try:
        yield trainer_for(training, policy, environment, max_policy_lag=0, ranked=ranked), members  # type: ignore[misc]
    finally:
        if members is not None:
            members.close()


def batches(trainer: Trainer, count: int, environment: str = "CartPole-v1") -> list[list[Fragment]]:
    policy = load_policy(trainer.policy_blob())
    collectors = [Collector({"id": environment}, 8, collector_seed(0, name, 1)) for name in "ab"]
    return [[collector.collect(policy, 16) for collector in collectors] for _ in range(count)]


def furthest(one: Trainer, other: Trainer) -> float:
    left, right = one.tensors(), other.tensors()
    assert left.keys() == right.keys()
    # The head for values of a DQN in torch is drawn, and never used.
    left = {name: value for name, value in left.items() if not name.startswith(("network.value.", "target.value."))}
    return max(float(np.abs(left[name].astype(float) - right[name].astype(float)).max(initial=0.0)) for name in left)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "settings",
    [
        PPO,
        pytest.param(DQN, marks=pytest.mark.slow),
        pytest.param(SAC, marks=pytest.mark.slow),
        pytest.param({**PPO, "backend": "torch"}, marks=pytest.mark.slow),
        pytest.param({**DQN, "backend": "torch"}, marks=pytest.mark.slow),
        # In numpy, whose sums are the same: rounding decides between neighbours of a prioritised draw.
        pytest.param(PRIORITISED, marks=pytest.mark.slow),
        pytest.param(RECURRENT, marks=pytest.mark.slow),
        pytest.param({**PPO, "normalise_observations": True}, marks=pytest.mark.slow),
    ],
    ids=["ppo", "dqn", "sac", "ppo-torch", "dqn-torch", "prioritised", "recurrent", "normalised"],
)
def test_two_ranks_equal_one_process_also_when_one_is_killed_between(tmp_path: Path, settings: dict[str, Any]) -> None:
    with trained(tmp_path, settings, 1) as (alone, nobody), trained(tmp_path, settings, 2) as (together, children):
        assert nobody is None
        assert children is not None
        environment = settings.get("environment", {}).get("id", "CartPole-v1")
        for number, batch in enumerate(batches(alone, UPDATES, environment)):
            if number == UPDATES // 2:
                (killed,) = children.pids
                os.kill(killed, signal.SIGKILL)
            one, other = alone.update(batch, number / UPDATES), together.update(batch, number / UPDATES)
            assert one.applied
            assert other.applied
            assert one.steps == other.steps
            assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-3)
        assert children.pids != [killed]
        assert furthest(alone, together) < 1e-5


@pytest.mark.slow
def test_more_ranks_than_steps_in_some_minibatches_equal_one_process(tmp_path: Path) -> None:
    settings = {**PPO, "ppo": {"minibatch_steps": 2, "epochs": 1}}
    with trained(tmp_path, settings, 1) as (alone, _), trained(tmp_path, settings, 3) as (together, _):
        for batch in batches(alone, 1):
            alone.update(batch, 0.0)
            together.update(batch, 0.0)
        assert furthest(alone, together) < 1e-5


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_undone_on_every_rank(tmp_path: Path) -> None:
    with trained(tmp_path, PPO, 1) as (alone, _), trained(tmp_path, PPO, 2) as (together, _):
        first, bad, last = batches(alone, 3)
        bad[1].columns[REWARD][3, 3] = np.inf
        for trainer in (alone, together):
            assert trainer.update(first, 0.0).applied
            with np.errstate(all="ignore"):
                assert not trainer.update(bad, 0.0).applied
            assert trainer.update(last, 0.0).applied
        assert furthest(alone, together) < 1e-5


def test_what_cannot_be_divided_is_refused() -> None:
    def refusal(**settings: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            check_processes(TrainingConfig.model_validate({"processes": 3, **settings}))
        return caught.value.message

    assert "must be 1 for q_learning, got 3" in refusal(algorithm="q_learning")
    assert "num_envs x training.batch_trajectories, which is 2, got 3" in refusal(num_envs=2)
    assert "dqn.minibatch_steps, which is 2, got 3" in refusal(algorithm="dqn", dqn={"minibatch_steps": 2})


def test_a_launcher_says_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_processes(TrainingConfig())
    with pytest.raises(ConfigError, match=r"training\.processes is 3, and a launcher started 2"):
        check_processes(TrainingConfig(processes=3))
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(ConfigError, match=r"RANK must be from 0 to below WORLD_SIZE"):
        check_processes(TrainingConfig())
