"""Observations as programs pass them to a policy."""

import gymnasium
import numpy as np
import pytest

from parlmesh.api.observations import Reader
from parlmesh.errors import InvalidInput
from parlmesh.policies.policy_spec import PolicySpec
from parlmesh.types import ActionSpec

TWO = ActionSpec("discrete", (2,))


class Grey(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (12, 10), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((12, 10), np.uint8), {}

    def step(self, action):
        return np.zeros((12, 10), np.uint8), 0.0, True, False, {}


@pytest.fixture
def grey():
    gymnasium.register("parlmesh-test/Grey-v0", lambda **_: Grey())
    yield {"id": "parlmesh-test/Grey-v0", "stacked": 4}
    del gymnasium.registry["parlmesh-test/Grey-v0"]


@pytest.mark.parametrize(
    ("given", "rows", "single"),
    [((12, 10), 1, True), ((1, 12, 10), 1, False), ((5, 12, 10), 5, False), ((5, 1, 12, 10), 5, False)],
)
def test_grey_images_are_read_as_the_environment_gives_them(grey, given, rows, single):
    reader = Reader(PolicySpec((4, 12, 10), TWO, network="conv"), grey)
    assert (reader.read(np.zeros(given, np.uint8))[0].shape, reader.read(np.zeros(given, np.uint8))[1]) == (
        (rows, 4, 12, 10),
        single,
    )


@pytest.mark.parametrize(
    ("given", "rows", "single"),
    [((12, 10), 1, True), ((1, 12, 10), 1, True), ((5, 12, 10), 5, False), ((12, 10, 1), 1, True)],
)
def test_grey_images_are_read_without_their_environment_too(given, rows, single):
    seen, alone = Reader(PolicySpec((1, 12, 10), TWO, network="conv"), {}).read(np.zeros(given, np.uint8))
    assert (seen.shape, alone) == ((rows, 1, 12, 10), single)


@pytest.mark.parametrize("given", [(12,), (10, 12), (2, 2, 12, 10)])
def test_an_image_of_another_size_is_refused(given):
    with pytest.raises(InvalidInput, match="the policy was trained on"):
        Reader(PolicySpec((1, 12, 10), TWO, network="conv"), {}).read(np.zeros(given, np.uint8))
