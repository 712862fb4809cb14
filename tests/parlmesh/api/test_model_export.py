import json
import sys

import numpy as np
import pytest
import yaml

from parlmesh.api.model_export import export_model
from parlmesh.api.policy import TrainedPolicy, load_policy
from parlmesh.api.video import film
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput, NotFound
from parlmesh.policies import PolicySpec, pack_policy
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.policies.policy_file import with_environment
from parlmesh.types import ActionSpec

SPEC = PolicySpec((4,), ActionSpec("discrete", (2,)), hidden=(8,))


def blob(seed):
    return pack_policy(SPEC, DenseActorCritic(SPEC, np.random.default_rng(seed)).named_weights())


@pytest.fixture
def run(tmp_path):
    """A run's folder as a learner leaves it: version 2 is the best, version 3 the promoted one."""
    models = tmp_path / "run/models"
    models.mkdir(parents=True)
    for version, earned in ((1, 20.0), (2, 480.5), (3, 300.0)):
        (models / f"v{version:08d}.safetensors").write_bytes(blob(version))
        known = {"environment": "CartPole-v1", "algorithm": "ppo", "steps": 1000 * version, "seed": 7}
        known |= {"evaluation_return": earned, "evaluation_episodes": 20, "observation_dtype": "float32"}
        (models / f"v{version:08d}.json").write_text(json.dumps({"metadata": known}))
    (models / "promoted.json").write_text(json.dumps({"version": 3}))
    settings = {"training": {"algorithm": "ppo", "environment": {"id": "CartPole-v1", "stacked": 1}}}
    (tmp_path / "run/learner.effective.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path / "run"


@pytest.mark.parametrize(("choice", "version"), [({}, 3), ({"best": True}, 2), ({"version": 1}, 1)])
def test_the_model_that_is_wanted_is_written(run, tmp_path, choice, version):
    (file,) = export_model(run, tmp_path / "policy.safetensors", **choice)
    assert file.read_bytes() == with_environment(blob(version), {"id": "CartPole-v1", "stacked": 1})
    assert load_policy(file).environment == {"id": "CartPole-v1", "stacked": 1}


def test_a_folder_for_a_hub_says_what_it_is_and_acts_where_it_is_read(run, tmp_path):
    files = export_model(run, tmp_path / "my-cartpole", best=True)
    assert {file.name for file in files} == {"README.md", "config.json", "policy.safetensors", "settings.yaml"}
    card = (tmp_path / "my-cartpole/README.md").read_text()
    _, matter, text = card.split("---\n", 2)
    found = yaml.safe_load(matter)
    assert found["model-index"][0]["results"][0]["metrics"][0]["value"] == 480.5
    assert found["tags"] == ["reinforcement-learning", "CartPole-v1", "ppo"]
    for fact in ("`CartPole-v1`", "2,000", "480.50", "parlmesh up --config my-cartpole/settings.yaml"):
        assert fact in text
    assert yaml.safe_load((tmp_path / "my-cartpole/settings.yaml").read_text())["training"]["algorithm"] == "ppo"
    policy, seen = load_policy(tmp_path / "my-cartpole"), np.array([0.1, 0.0, -0.1, 0.2], np.float32)
    assert policy.environment == {"id": "CartPole-v1", "stacked": 1}
    assert policy.act(seen) == TrainedPolicy.load_model(run / "models/v00000002.safetensors").act(seen)
    with pytest.raises(AlreadyExists, match="my-cartpole exists; choose another"):
        export_model(run, tmp_path / "my-cartpole")


def test_an_onnx_file_needs_no_learner(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    (file,) = export_model(run, tmp_path / "policy.onnx", best=True)
    seen = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    (action,) = onnxruntime.InferenceSession(str(file)).run(["action"], {"observation": seen})
    np.testing.assert_array_equal(action, load_policy(run, version=2).act(seen))


def test_what_cannot_be_exported_is_refused(run, tmp_path):
    with pytest.raises(InvalidInput, match=r"policy.pt must end in .safetensors or .onnx, or have no suffix"):
        export_model(run, tmp_path / "policy.pt")
    with pytest.raises(InvalidInput, match="version is 1 and best is true"):
        export_model(run, tmp_path / "policy.onnx", version=1, best=True)
    with pytest.raises(NotFound, match="has no model of version 9; it has: 1, 2, 3"):
        export_model(run, tmp_path / "policy.onnx", version=9)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_episode_is_filmed(run, tmp_path):
    from PIL import Image

    frames = film(load_policy(run), tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as picture:
        assert 9 <= getattr(picture, "n_frames", 1) <= frames


def test_a_film_without_an_encoder_says_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FailedPrecondition, match=r"episode.mp4 needs an encoder: pip install imageio-ffmpeg"):
        film(load_policy(run), tmp_path / "episode.mp4")
    with pytest.raises(InvalidInput, match=r"must end in .gif or .mp4"):
        film(load_policy(run), tmp_path / "episode.avi")
