import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from parlmesh.environments import Environments, environment_spec
from parlmesh.errors import InvalidInput
from parlmesh.types import ActionSpec


class Tiny(gymnasium.Env):
    """Five steps of anything; its spaces are arguments."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action
        self._steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._steps += 1
        return self._observe(), 1.0, self._steps == 5, False, {}

    def _observe(self):
        self.observation_space.seed(self._steps)
        observation = self.observation_space.sample()
        if isinstance(observation, dict) and "action_mask" in observation:
            observation["action_mask"][:] = np.arange(len(observation["action_mask"])) != self._steps % 3
        return observation


gymnasium.register("parlmesh-test/Tiny-v0", lambda **spaces: Tiny(**spaces))


def tiny(observation, action):
    return {"id": "parlmesh-test/Tiny-v0", "kwargs": {"observation": observation, "action": action}}


BOX, TWO = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)
DICTIONARY = spaces.Dict({"a": spaces.Box(0, 1, (2, 2)), "b": spaces.Discrete(3), "c": spaces.MultiBinary(2)})
MASKED = spaces.Dict({"seen": BOX, "action_mask": spaces.MultiBinary(3)})


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (spaces.Discrete(4), ActionSpec("discrete", (4,))),
        (spaces.MultiDiscrete([2, 3]), ActionSpec("multi_discrete", (2, 3))),
        (spaces.Discrete(3, start=-1), ActionSpec("discrete", (3,))),
        (spaces.MultiDiscrete([2, 3], start=[4, 5]), ActionSpec("multi_discrete", (2, 3))),
        (spaces.MultiBinary(3), ActionSpec("multi_discrete", (2, 2, 2))),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3, start=1))), ActionSpec("multi_discrete", (2, 3))),
        (
            spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
            ActionSpec("continuous", (), (-1.0, 0.0), (1.0, 5.0)),
        ),
    ],
)
def test_every_kind_of_action_is_described_and_given_as_the_environment_wants_it(action, expected):
    envs = Environments(tiny(BOX, action), 2)
    assert envs.spec.action == expected
    envs.reset(0)
    largest = np.array(expected.sizes) - 1 if expected.sizes else np.array(expected.high)
    for choice in (np.zeros_like(largest), largest):
        given = np.stack([choice] * 2).astype(expected.dtype)
        # Tiny refuses what its space does not contain.
        envs.step(given[:, 0] if expected.kind == "discrete" else given)


@pytest.mark.parametrize(
    ("observation", "shape", "dtype", "states"),
    [
        (BOX, (3,), "float32", 0),
        (spaces.Box(0, 255, (3, 8, 8), np.uint8), (3, 8, 8), "uint8", 0),
        (spaces.Box(0, 255, (96, 95, 3), np.uint8), (3, 96, 95), "uint8", 0),
        (
            spaces.Box(0, 1, (10, 10, 4), bool),  # type: ignore[arg-type]
            (4, 10, 10),
            "bool",
            0,
        ),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32", 0),
        (spaces.Discrete(7), (), "int64", 7),
        (spaces.Discrete(7, start=3), (), "int64", 7),
        (spaces.MultiBinary(4), (4,), "float32", 0),
        (spaces.MultiDiscrete([2, 3]), (5,), "float32", 0),
        (spaces.Tuple((spaces.Discrete(3, start=2), spaces.Dict({"a": BOX}))), (6,), "float32", 0),
        (DICTIONARY, (9,), "float32", 0),
    ],
)
def test_every_kind_of_observation_is_described_and_seen_in_that_shape(observation, shape, dtype, states):
    environment = tiny(observation, TWO)
    spec = environment_spec(environment)
    assert (spec.observation_shape, spec.observation_dtype, spec.observation_states) == (shape, dtype, states)
    seen = Environments(environment, 2).reset(0)
    assert (seen.observation.shape, str(seen.observation.dtype)) == ((2, *shape), dtype)
    assert not states or 0 <= seen.observation.min() <= seen.observation.max() < states


def test_an_image_with_its_channels_last_is_seen_with_them_first():
    space = spaces.Box(0, 255, (12, 10, 3), np.uint8)
    whole, turned = (Environments({**tiny(space, TWO), "image": image}, 2) for image in ("chw", "auto"))
    given, seen = whole.reset(0).observation, turned.reset(0).observation
    np.testing.assert_array_equal(seen, given.transpose(0, 3, 1, 2))


def test_float64_travels_when_it_is_asked_for():
    environment = {**tiny(spaces.Box(-1, 1, (3,), np.float64), TWO), "float64": True}
    assert environment_spec(environment).observation_dtype == "float64"


def test_stacked_observations_start_anew_with_an_episode():
    plain, stacked = (Environments({**tiny(BOX, TWO), "stacked": count}, 2) for count in (1, 3))
    assert stacked.spec.observation_shape == (9,)
    rows = [plain.reset(0).observation]
    seen = [stacked.reset(0).observation]
    for _ in range(7):
        rows.append(plain.step(np.zeros(2, np.int64))[0].observation)
        seen.append(stacked.step(np.zeros(2, np.int64))[0].observation)
    np.testing.assert_array_equal(seen[0], np.concatenate([rows[0]] * 3, axis=1))
    np.testing.assert_array_equal(seen[5], np.concatenate(rows[3:6], axis=1))
    # An episode has five steps; the sixth only resets.
    np.testing.assert_array_equal(seen[6], np.concatenate([rows[6]] * 3, axis=1))
    np.testing.assert_array_equal(seen[7], np.concatenate([rows[6], rows[6], rows[7]], axis=1))


def test_a_module_before_the_colon_is_imported_and_asked_to_register(tmp_path, monkeypatch):
    text = "import gymnasium\nfrom gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
    text += "def register_envs():\n    gymnasium.register('parlmesh-test/Late-v0', CartPoleEnv)\n"
    (tmp_path / "late_worlds.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert environment_spec({"id": "late_worlds:parlmesh-test/Late-v0"}).observation_shape == (4,)


def test_a_class_after_the_colon_is_an_environment(tmp_path, monkeypatch):
    text = "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\nclass Pole(CartPoleEnv): ...\n"
    (tmp_path / "pole_worlds.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        assert environment_spec({"id": "pole_worlds:Pole"}).observation_shape == (4,)


def test_a_repeated_action_earns_all_its_rewards_and_a_clip_counts_from_where_it_stands():
    repeated, clipped = {"RepeatAction": {"num_repeats": 3}}, {"ClipReward": {"max_reward": 0.5}}
    for wrappers, earned in ((repeated | clipped, 0.5), (clipped | repeated, 1.5)):
        envs = Environments({"id": "CartPole-v1", "wrappers": wrappers}, 2)
        envs.reset(0)
        np.testing.assert_allclose(envs.step(np.array([0, 1]))[1], earned)
        envs.close()


def test_wrappers_are_applied_innermost_first():
    wrappers = {"TimeLimit": {"max_episode_steps": 3}, "TimeAwareObservation": {}}
    envs = Environments({"id": "CartPole-v1", "wrappers": wrappers}, 2)
    assert envs.spec.observation_shape == (5,)
    envs.reset(0)
    ended = [envs.step(np.array([0, 1]))[3] for _ in range(3)]
    np.testing.assert_array_equal(ended[-1], [True, True])


def test_a_dictionary_is_flattened_entry_by_entry_with_states_as_one_hot_rows():
    envs = Environments(tiny(DICTIONARY, TWO), 1)
    row = envs.reset(0).observation[0]
    assert row[4:7].sum() == 1.0
    assert set(row[7:]) <= {0.0, 1.0}


def test_a_mask_comes_beside_the_observation():
    envs = Environments(tiny(MASKED, spaces.Discrete(3)), 2)
    assert envs.spec.masked
    seen = envs.reset(0)
    assert seen.observation.shape == (2, 3)
    np.testing.assert_array_equal(seen.mask, [[False, True, True]] * 2)
    seen, *_ = envs.step(np.array([1, 2]))
    np.testing.assert_array_equal(seen.mask, [[True, False, True]] * 2)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"id": "NoSuchEnv-v0"}, "'NoSuchEnv-v0' cannot be made"),
        ({}, "'' cannot be made"),
        ({"id": "CartPole-v1", "kwargs": {"wings": 2}}, "'CartPole-v1' cannot be made"),
        (tiny(BOX, spaces.Box(-np.inf, np.inf, (1,))), "action space must be"),
        (tiny(BOX, spaces.Tuple((TWO, BOX))), "action space must be"),
        (tiny(spaces.Text(5), TWO), "observation must be"),
        ({"id": "no_such_module:World-v0"}, "'no_such_module:World-v0' cannot be made"),
        ({"id": "not a module:World-v0"}, "must be an id, or module:id"),
        ({"id": "CartPole-v1", "wrappers": {"RecordVideo": {}}}, "wrappers knows .*, not 'RecordVideo'"),
        ({"id": "CartPole-v1", "image": "hwc"}, "environment.image hwc needs an observation of three axes"),
        ({"id": "FrozenLake-v1", "stacked": 2}, "states cannot be stacked"),
        (tiny(spaces.Dict({"t": spaces.Text(5)}), TWO), "observation 't' must be"),
        (tiny(MASKED, spaces.Discrete(4)), "action_mask must have one entry per choice, 4, got 3"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused_by_name(environment, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        environment_spec(environment)


def test_what_is_not_observed_is_hidden():
    whole, partial = Environments({"id": "CartPole-v1"}, 3), Environments({"id": "CartPole-v1", "observed": [0, 2]}, 3)
    assert partial.spec.observation_shape == (2,)
    everything, seen = whole.reset(7).observation, partial.reset(7).observation
    assert np.array_equal(seen, everything[:, [0, 2]])
    action = np.array([0, 1, 0])
    assert np.array_equal(partial.step(action)[0].observation, whole.step(action)[0].observation[:, [0, 2]])


@pytest.mark.parametrize("observed", [[], [4], [-1], [0, 0]])
def test_missing_positions_are_refused_by_name(observed):
    with pytest.raises(InvalidInput, match=r"observed must name different positions from 0 to 3, got"):
        Environments({"id": "CartPole-v1", "observed": observed}, 1)


def test_only_flat_observations_can_be_partly_hidden():
    with pytest.raises(InvalidInput, match="only a flat observation"):
        Environments({"id": "FrozenLake-v1", "observed": [0]}, 1)


def test_a_step_of_the_old_interface_is_refused_with_the_name_of_its_class():
    class Old(Tiny):
        def step(self, action):
            seen, reward, terminated, _, info = super().step(action)
            return seen, reward, terminated, info

    gymnasium.register("Old-v0", lambda **_: Old(BOX, TWO))
    try:
        envs = Environments({"id": "Old-v0"}, 1)
        envs.reset(seed=0)
        with pytest.raises(InvalidInput, match=r"step\(\) of .*Old must return 5 values"):
            envs.step(np.zeros(1, np.int64))
    finally:
        del gymnasium.registry["Old-v0"]
