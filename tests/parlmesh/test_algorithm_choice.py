import pytest
import torch

from learner.build import check_training
from learner.config import LearnerConfig, TrainingConfig
from parlmesh.algorithm_choice import check_device, policy_for, trainer_for
from parlmesh.errors import ConfigError
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.torch_device import torch_device
from parlmesh.types import ActionSpec, EnvironmentSpec


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_missing_cuda_is_reported_in_one_sentence(without_cuda):
    with pytest.raises(ConfigError, match=r"training\.device is cuda, but torch finds no CUDA device here"):
        check_training(LearnerConfig(), TrainingConfig(device="cuda"))


def test_auto_takes_what_is_available(without_cuda, monkeypatch):
    assert torch_device("auto").type == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert torch_device("auto").type == "cuda"
    assert torch_device("cpu").type == "cpu"


def test_numpy_has_no_cuda():
    with pytest.raises(ConfigError, match=r"training\.backend must be torch or auto for device cuda, got numpy"):
        check_device(TrainingConfig(device="cuda", backend="numpy"))


def test_a_device_means_nothing_where_there_is_no_network(without_cuda):
    check_device(TrainingConfig(algorithm="q_learning", device="cuda"))
    check_device(TrainingConfig())


@pytest.mark.parametrize(("lag", "chosen"), [(0, "gae"), (1, "weighted"), (2, "vtrace"), (3, "vtrace"), (8, "vtrace")])
def test_experience_may_be_older_the_more_its_targets_correct(lag, chosen):
    def targets(asked, limit=None):
        config = TrainingConfig.model_validate({"max_policy_lag": lag, "ppo": {"targets": asked}})
        trainer = trainer_for(config, policy_for(config, space), space, max_policy_lag=limit)
        assert isinstance(trainer, PpoTrainer)
        return trainer._config.targets

    space = EnvironmentSpec((4,), "float32", ActionSpec("discrete", (2,)))
    assert targets("auto") == chosen
    assert [targets(asked) for asked in ("gae", "weighted", "vtrace")] == ["gae", "weighted", "vtrace"]
    assert targets("auto", limit=0) == "gae", "a serial run has no lag, whatever its limit is"
