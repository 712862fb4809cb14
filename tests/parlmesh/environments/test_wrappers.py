"""Images as the documented wrappers give them: small ones of an environment that fakes a screen."""

import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parlmesh.environments import Environments, environment_spec
from parlmesh.environments.wrappers import wrappers_of
from parlmesh.errors import InvalidInput


class Screen(gymnasium.Env):
    """A screen whose brightness is the number of steps."""

    observation_space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._seen(), {}

    def step(self, action):
        self._steps += 1
        return self._seen(), float(action), self._steps == 20, False, {}

    def _seen(self):
        return np.full((12, 10, 3), 10 * self._steps, np.uint8)


@pytest.fixture(autouse=True)
def screen(monkeypatch):
    """The environment, and the one function of opencv that resizing calls."""

    def resize(image, size, interpolation):
        rows, columns = (np.arange(new) * old // new for new, old in zip(size[::-1], image.shape, strict=False))
        return image[rows][:, columns]

    monkeypatch.setitem(sys.modules, "cv2", SimpleNamespace(resize=resize, INTER_AREA=3))
    gymnasium.register("parlmesh-test/Screen-v0", lambda **_: Screen())
    yield
    del gymnasium.registry["parlmesh-test/Screen-v0"]


def of_screen(wrappers, **more):
    return {"id": "parlmesh-test/Screen-v0", "wrappers": wrappers, **more}


@pytest.mark.parametrize(
    ("wrappers", "stacked", "shape"),
    [
        ({}, 1, (3, 12, 10)),
        ({}, 4, (12, 12, 10)),
        ({"GrayscaleObservation": {}}, 1, (1, 12, 10)),
        ({"GrayscaleObservation": {}}, 4, (4, 12, 10)),
        ({"GrayscaleObservation": {"keep_dim": True}}, 4, (4, 12, 10)),
        ({"ResizeObservation": {"shape": [8, 6]}}, 2, (6, 8, 6)),
        ({"ResizeObservation": {"shape": (8, 6)}}, 1, (3, 8, 6)),
        ({"GrayscaleObservation": {}, "ResizeObservation": {"shape": [8, 6]}}, 4, (4, 8, 6)),
    ],
)
def test_images_are_stacked_along_their_channels_grey_ones_and_resized_ones_too(wrappers, stacked, shape):
    environment = of_screen(wrappers, stacked=stacked)
    assert environment_spec(environment).observation_shape == shape
    envs = Environments(environment, 2)
    envs.reset(0)
    for _ in range(5):
        seen, *_ = envs.step(np.ones(2, np.int64))
    assert (seen.observation.shape, str(seen.observation.dtype)) == ((2, *shape), "uint8")
    brightness = seen.observation.reshape(2, stacked, -1).mean(axis=2)
    np.testing.assert_allclose(brightness, [[10 * step for step in range(6 - stacked, 6)]] * 2, atol=1)
    envs.close()


def test_a_wrapper_that_takes_a_bound_for_each_number_may_get_a_list():
    (rescale,) = wrappers_of({"RescaleObservation": {"min_obs": [0, 0, 0, 0], "max_obs": [1, 2, 1, 2]}})
    box = spaces.Box(-1, 1, (4,), np.float32)
    env = gymnasium.wrappers.TransformObservation(gymnasium.make("CartPole-v1"), np.tanh, box)
    assert rescale(env).observation_space == spaces.Box(np.zeros(4), np.array([1, 2, 1, 2]), dtype=np.float32)


@pytest.mark.parametrize("given", [4, [84, 84], "grey"])
def test_arguments_of_a_wrapper_that_are_no_mapping_are_refused_by_name(given):
    with pytest.raises(InvalidInput, match=r"environment\.wrappers\.RepeatAction must map its arguments to values"):
        wrappers_of({"RepeatAction": given})


def test_the_games_of_an_atari_namespace_are_found_where_their_package_is_installed(monkeypatch, tmp_path):
    registers = f"import gymnasium, {__name__}\ngymnasium.register('ALE/Paddles-v5', {__name__}.Screen)\n"
    (tmp_path / "ale_py.py").write_text(registers)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "ale_py", raising=False)
    try:
        assert environment_spec({"id": "ALE/Paddles-v5"}).observation_shape == (3, 12, 10)
    finally:
        gymnasium.registry.pop("ALE/Paddles-v5", None)
        sys.modules.pop("ale_py", None)
