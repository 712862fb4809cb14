"""What `parlmesh evaluate` refuses, before it plays an episode and while it does."""

from pathlib import Path

import numpy as np
import pytest

import parlmesh.api.episodes
from parlmesh.api.policy import TrainedPolicy
from parlmesh.cli.commands.evaluate import evaluate
from parlmesh.errors import FleetError
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.types import ActionSpec


@pytest.mark.parametrize(
    ("recording", "sentence"),
    [
        ({"video": Path("out.avi")}, "out.avi must end in .gif or .mp4"),
        ({"video": Path("nowhere/out.gif")}, "there is no folder nowhere for out.gif"),
        ({"dataset": "short"}, "is not a data set name|pip install"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_episodes_are_played(
    recording: dict[str, object], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parlmesh.api.policy, "load_policy", lambda *_, **__: TrainedPolicy.__new__(TrainedPolicy))
    monkeypatch.setattr(parlmesh.api.episodes, "evaluate_policy", lambda *_, **__: pytest.fail("it was played"))
    with pytest.raises(FleetError, match=sentence):
        evaluate(Path("one.safetensors"), **recording)  # type: ignore[arg-type]


ENVIRONMENT = """
import gymnasium, numpy as np
class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, fault):
        self.fault = fault
    def seen(self, value):
        return np.full(2, value, np.float32)
    def reset(self, *, seed=None, options=None):
        return self.seen(np.nan if self.fault == "nan at first" else 0.0), {}
    def step(self, action):
        if self.fault == "raises":
            raise ValueError("no such door")
        if self.fault == "exits":
            raise SystemExit(0)
        reward = np.inf if self.fault == "reward" else 1.0
        return self.seen(np.nan if self.fault == "nan" else 0.0), reward, False, False, {}
gymnasium.register("Broken-v0", Broken)
"""


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("nan at first", "an observation of environment 'broken_world:Broken-v0' has values that are not finite"),
        ("nan", "an observation of environment 'broken_world:Broken-v0' has values that are not finite"),
        ("reward", "a reward of environment 'broken_world:Broken-v0' has values that are not finite"),
        ("raises", r"the environment failed: ValueError: no such door \(.*broken_world.py:14\)"),
        ("exits", r"the environment failed: SystemExit: 0 \(.*broken_world.py:16\)"),
    ],
)
def test_an_environments_fault_is_said_in_one_sentence(
    fault: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_world.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(tmp_path)
    spec = PolicySpec((2,), ActionSpec("discrete", (2,)), hidden=(8,))
    weights = DenseActorCritic(spec, np.random.default_rng(0)).named_weights()
    environment = {"id": "broken_world:Broken-v0", "kwargs": {"fault": fault, "disable_env_checker": True}}
    file = TrainedPolicy(pack_policy(spec, weights), environment).save(tmp_path / "one.safetensors")
    with pytest.raises(FleetError, match=sentence):
        evaluate(file, episodes=2)
