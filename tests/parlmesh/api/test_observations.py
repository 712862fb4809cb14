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


@pytest.mark.parametrize("given", [[0.0, np.nan], [np.inf, 0.0], [1e300, 0.0], [[0.0, 0.0], [0.0, np.nan]]])
def test_an_observation_that_is_not_finite_is_refused(given):
    with pytest.raises(InvalidInput, match="has values that are not finite"):
        Reader(PolicySpec((2,), TWO), {}).read(np.array(given))


@pytest.mark.parametrize("given", [np.array([None, None]), np.zeros(2, complex), ["a", "b"]])
def test_an_observation_that_is_not_made_of_numbers_is_refused(given):
    with pytest.raises(InvalidInput, match="it must be numbers or bool"):
        Reader(PolicySpec((2,), TWO), {}).read(given)


@pytest.mark.parametrize("given", [{"a": 1}, (1, 2), {}])
def test_a_mapping_where_the_environment_gives_an_array_is_refused(grey, given):
    with pytest.raises(InvalidInput, match="is no observation of the policy's environment; it must be one of Box"):
        Reader(PolicySpec((4, 12, 10), TWO, network="conv"), grey).read(given)


def test_a_single_number_is_an_observation():
    reader = Reader(PolicySpec((), TWO), {})
    assert (reader.read(np.float32(0.5))[0].tolist(), reader.read(0.5)[1]) == ([0.5], True)
    assert (reader.read([0.5, 0.25])[0].tolist(), reader.read([0.5])[1]) == ([0.5, 0.25], False)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"stacked": "x"}, "environment.stacked is 'x'; it must be a whole number that divides"),
        ({"stacked": -1}, "environment.stacked is -1"),
        ({"stacked": 3}, "environment.stacked is 3"),
        ({"stacked": 1.5}, "environment.stacked is 1.5"),
        ({"stacked": [1]}, r"environment.stacked is \[1\]"),
        ({"observed": "ab"}, "environment.observed is 'ab'; it must be a list of 2 positions, from 0"),
        ({"observed": [0]}, r"environment.observed is \[0\]"),
        ({"observed": [-1, 0]}, r"environment.observed is \[-1, 0\]"),
        ({"observed": 5}, "environment.observed is 5"),
        ({"kwargs": 5}, "environment.kwargs is 5; it must be a mapping"),
        ({"wrappers": "x"}, "environment.wrappers is 'x'; it must be a mapping"),
    ],
)
def test_an_impossible_environment_in_a_file_is_refused_by_name(environment, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        Reader(PolicySpec((2,), TWO), {"id": "CartPole-v1", **environment})


def test_a_position_that_the_environment_does_not_have_is_refused():
    reader = Reader(PolicySpec((2,), TWO), {"id": "CartPole-v1", "observed": [0, 7]})
    with pytest.raises(InvalidInput, match=r"environment.observed is \[0, 7\]; it must be positions from 0 to 3"):
        reader.read(np.zeros(4))
