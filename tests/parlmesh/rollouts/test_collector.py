import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from parlmesh.environments import environment_spec
from parlmesh.environments.environment_threads import SteppedEnvironments
from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.errors import Unavailable
from parlmesh.policies import PolicySpec, load_policy, pack_policy
from parlmesh.policies.numpy_acting import Choice
from parlmesh.policies.numpy_networks import DenseActorCritic
from parlmesh.rollouts import Collector, collector_seed, evaluate
from parlmesh.training.reward_scale import discounted_sums
from parlmesh.types import ACTION, EARNED, OBSERVATION, REWARD, TERMINATED, TRUNCATED, VALID, ActionSpec

CARTPOLE = {"id": "CartPole-v1"}


def policy(seed=0, observations=4, actions=2):
    spec = PolicySpec((observations,), ActionSpec("discrete", (actions,)), hidden=(8,))
    return load_policy(pack_policy(spec, DenseActorCritic(spec, np.random.default_rng(seed)).named_weights()))


@pytest.fixture(params=["native", "one by one"])
def environment(request, monkeypatch):
    """CartPole in gymnasium's native vector form, and as single environments stepped in turn."""
    if request.param == "one by one":
        monkeypatch.setattr(gymnasium.spec("CartPole-v1"), "vector_entry_point", None)
    return CARTPOLE


def test_the_step_after_an_end_is_the_only_invalid_one(environment):
    columns = Collector(environment, 4, collector_seed(0, "a", 1)).collect(policy(), 300).columns
    ended = columns[TERMINATED] | columns[TRUNCATED]
    assert ended.any()
    np.testing.assert_array_equal(columns[VALID][1:], ~ended[:-1])
    assert columns[VALID][0].all()
    assert not (ended & ~columns[VALID]).any()
    np.testing.assert_array_equal(columns[REWARD], columns[VALID].astype(np.float32))


def test_the_row_after_an_end_is_the_true_final_observation(environment):
    columns = Collector(environment, 4, collector_seed(0, "a", 1)).collect(policy(), 300).columns
    for step, env in np.argwhere(columns[TERMINATED]):
        position, _, angle, _ = columns[OBSERVATION][step + 1, env]
        assert abs(position) > 2.4 or abs(angle) > 0.2095
    for step, env in np.argwhere(~columns[VALID]):
        assert np.abs(columns[OBSERVATION][step + 1, env]).max() <= 0.05


def test_episodes_go_on_across_fragments_and_are_counted_once():
    collector = Collector(CARTPOLE, 8, collector_seed(1, "a", 1))
    fragments = [collector.collect(policy(), 7) for _ in range(30)]
    episodes = [episode for fragment in fragments for episode in fragment.episodes]
    ends = sum(int((f.columns[TERMINATED] | f.columns[TRUNCATED]).sum()) for f in fragments)
    assert len(episodes) == ends > 10
    assert all(episode.total_reward == episode.steps for episode in episodes)
    for before, after in itertools.pairwise(fragments):
        np.testing.assert_array_equal(before.columns[OBSERVATION][-1], after.columns[OBSERVATION][0])
    unfinished = sum(f.valid_steps for f in fragments) - sum(episode.steps for episode in episodes)
    assert 0 <= unfinished < 8 * 500


def test_the_time_limit_truncates_and_does_not_terminate():
    class Balanced:
        """Pushes against the fall, and so stands for far longer than the limit."""

        def initial_state(self, num_envs):
            return None

        def to_environment(self, action):
            return action

        def act(self, observation, rng, mask=None, state=None):
            action = (observation[:, 2] + 0.5 * observation[:, 3] + 0.02 * observation[:, 0] > 0).astype(np.int64)
            return Choice(action, np.zeros(len(action), np.float32))

        def greedy(self, observation, mask=None, state=None):
            raise AssertionError("a collector explores")

    columns = Collector(CARTPOLE, 4, collector_seed(0, "a", 1)).collect(Balanced(), 501).columns
    assert columns[TRUNCATED][499].any()
    assert not (columns[TRUNCATED] & columns[TERMINATED]).any()


def test_equal_seeds_collect_equal_fragments():
    def collect(*identity):
        return Collector(CARTPOLE, 4, collector_seed(*identity)).collect(policy(), 50).columns

    first, again = collect(3, "actor-0", 1), collect(3, "actor-0", 1)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for other in [(4, "actor-0", 1), (3, "actor-1", 1), (3, "actor-0", 2), (3, "actor-0", 1, 1)]:
        assert not np.array_equal(first[ACTION], collect(*other)[ACTION])


def test_environments_begin_anew_from_seeds_of_their_own_and_no_episode_is_cut(monkeypatch):
    monkeypatch.setattr(gymnasium.spec("CartPole-v1"), "vector_entry_point", None)
    seeded = []
    real = SteppedEnvironments.step

    def step(self, actions):
        seeded.append(dict(self.seeds))
        return real(self, actions)

    monkeypatch.setattr(SteppedEnvironments, "step", step)
    anew = Collector(CARTPOLE, 4, collector_seed(0, "a", 1), restart_steps=60)
    going_on = Collector(CARTPOLE, 4, collector_seed(0, "a", 1))
    fragments = [anew.collect(policy(), 50) for _ in range(8)]
    columns = {name: np.concatenate([each.columns[name] for each in fragments]) for name in (TERMINATED, VALID)}
    lives = [(row, index) for row, seeds in enumerate(seeded) for index in seeds]
    assert {index for _, index in lives} == {0, 1, 2, 3}
    # Each starts with the step that resets its environment after an episode.
    assert all(columns[TERMINATED][row - 1, index] and not columns[VALID][row, index] for row, index in lives)
    for index in range(4):
        began = [0, *(row for row, each in lives if each == index)]
        assert all(60 <= later - earlier < 160 for earlier, later in itertools.pairwise(began))
    assert len({seed for seeds in seeded for seed in seeds.values()}) == len(lives)
    lengths = [episode.steps for each in fragments for episode in each.episodes]
    assert min(lengths) >= 8
    others = [going_on.collect(policy(), 50) for _ in range(8)]
    assert not np.array_equal(fragments[-1].columns[OBSERVATION], others[-1].columns[OBSERVATION])


def test_games_too_long_to_remember_are_forgotten_and_said_so(monkeypatch):
    monkeypatch.setattr("parlmesh.rollouts.episode_replay._MOST_BYTES", 100)
    collector = Collector(CARTPOLE, 4, collector_seed(0, "a", 1), restart_steps=20, repeatable=True)
    collector.collect(policy(), 20)
    assert collector.mark().tensors()["actions"].nbytes == 80
    collector.collect(policy(), 20)
    assert collector.mark().tensors() == {}


class Long(gymnasium.Env[Any, Any]):
    """Ends after `steps` steps, whoever acts."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._done = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self._done += 1
        return np.zeros(4, np.float32), 1.0, self._done >= self._steps, False, {}


@pytest.fixture
def long_id():
    gymnasium.register("Long-v0", lambda **kwargs: Long(**kwargs), max_episode_steps=None)
    yield "Long-v0"
    gymnasium.registry.pop("Long-v0")


def test_episodes_longer_than_the_interval_of_restarts_come_to_their_end(long_id):
    collector = Collector({"id": long_id, "kwargs": {"steps": 250}}, 2, collector_seed(0, "a", 1), restart_steps=100)
    fragments = [collector.collect(policy(), 50) for _ in range(60)]
    lengths = [episode.steps for each in fragments for episode in each.episodes]
    assert set(lengths) == {250}
    assert len(lengths) >= 2 * 10


def test_fragments_say_what_their_episodes_had_earned_before():
    collector = Collector(CARTPOLE, 4, collector_seed(0, "a", 1), reward_discount=0.9)
    fragments = [collector.collect(policy(), 30).columns for _ in range(4)]
    rewards, ended = (np.concatenate([each[name] for each in fragments]) for name in (REWARD, TERMINATED))
    sums = discounted_sums(rewards, ended, 0.9)
    np.testing.assert_array_equal(fragments[0][EARNED], np.zeros(4, np.float32))
    for number in range(1, 4):
        expected = np.where(ended[30 * number - 1], 0.0, sums[30 * number - 1])
        np.testing.assert_allclose(fragments[number][EARNED], expected, rtol=1e-6)


ANYWHERE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "native vector": ({"id": "CartPole-v1"}, {}),
    "states": ({"id": "FrozenLake-v1"}, {}),
    "stacked": ({"id": "Acrobot-v1", "stacked": 3, "wrappers": {"TimeLimit": {"max_episode_steps": 25}}}, {}),
    "continuous": ({"id": "Pendulum-v1"}, {}),
    "memory": ({"id": "Acrobot-v1"}, {"network": "recurrent", "hidden": (8, 8)}),
}


@pytest.mark.parametrize("name", ANYWHERE)
@pytest.mark.parametrize("fragments", [0, 3, 7])
def test_a_collector_that_is_brought_to_a_mark_goes_on_exactly_as_the_original(name, fragments):
    environment, settings = ANYWHERE[name]
    spec = PolicySpec.for_environment(environment_spec(environment), **{"hidden": (8,), **settings})
    acting = load_policy(some_policy(spec))
    settings = {"restart_steps": 40, "repeatable": True, "reward_discount": 0.9}
    original = Collector(environment, 3, collector_seed(0, "a", 1), **settings)
    for _ in range(fragments):
        original.collect(acting, 33)
    mark = original.mark().tensors()
    expected = [original.collect(acting, 33) for _ in range(3)]
    copy = Collector(environment, 3, collector_seed(0, "a", 1), **settings)
    assert copy.go_to(mark, acting)
    for fragment in expected:
        found = copy.collect(acting, 33)
        assert all(np.array_equal(found.columns[each], fragment.columns[each]) for each in fragment.columns)
        assert found.episodes == fragment.episodes


def test_a_mark_of_other_environments_is_recognised():
    settings: dict[str, Any] = {"restart_steps": 100, "repeatable": True}
    original = Collector(CARTPOLE, 3, collector_seed(0, "a", 1), **settings)
    original.collect(policy(), 10)
    mark = original.mark().tensors()
    assert not Collector(CARTPOLE, 4, collector_seed(0, "a", 1), **settings).go_to(mark, policy())
    assert not Collector(CARTPOLE, 3, collector_seed(1, "a", 1), **settings).go_to(mark, policy())


def test_games_that_go_another_way_than_they_did_are_recognised_and_not_played_on():
    def shogi(**settings):
        environment = {"id": "games/shogi", "kwargs": settings}
        return Collector(environment, 2, collector_seed(0, "a", 1), repeatable=True)

    acting = load_policy(some_policy(PolicySpec.for_environment(environment_spec({"id": "games/shogi"}), hidden=(1,))))
    original = shogi()
    original.collect(acting, 4)
    mark = original.mark().tensors()
    assert shogi().go_to(mark, acting)
    # Other openings: rsshogi raises for moves of pieces that are elsewhere now.
    assert not shogi(opening_plies=60).go_to(mark, acting)


def test_games_against_versions_are_not_remembered_because_they_cannot_be_played_again():
    collector = Collector({"id": "games/tictactoe"}, 2, collector_seed(0, "a", 1), repeatable=True)
    spec = PolicySpec.for_environment(environment_spec({"id": "games/tictactoe"}), hidden=(4,))
    acting = load_policy(some_policy(spec))
    collector.collect(acting, 3)
    assert "actions" in collector.mark().tensors()
    collector.collect(acting, 3, [Opponent(NEWEST, acting)])
    assert collector.mark().tensors() == {}


def some_policy(spec):
    """Random weights for any network."""
    from parlmesh.policies.torch_networks import ActorCritic

    weights = ActorCritic(spec).named_weights()
    return pack_policy(spec, {name: weight for name, weight in weights.items() if not name.startswith("value.")})


def test_a_cancelled_evaluation_ends_at_once():
    with pytest.raises(Unavailable, match="cancelled"):
        evaluate(policy(), CARTPOLE, 2, seed=0, cancelled=lambda: True)


def test_an_evaluation_plays_one_whole_episode_per_environment(environment):
    returns = evaluate(policy(), environment, 20, seed=0)
    assert returns.shape == (20,)
    assert (returns >= 8).all()
    np.testing.assert_array_equal(returns, evaluate(policy(), environment, 20, seed=0))


def test_an_evaluation_equals_single_environments_played_in_turn():
    acting, returns = policy(3), []
    envs = gymnasium.make_vec("CartPole-v1", 5, vectorization_mode="vector_entry_point")
    states, _ = envs.reset(seed=7)
    for state in states:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        game = env.unwrapped
        assert isinstance(game, CartPoleEnv)
        game.state = state.astype(np.float64)
        total, done, observation = 0.0, False, state
        while not done:
            observation, reward, ends, cuts, _ = env.step(int(acting.greedy(observation[None]).action[0]))
            total, done = total + float(reward), ends or cuts
        returns.append(total)
    np.testing.assert_allclose(evaluate(acting, CARTPOLE, 5, seed=7), returns, atol=2.0)


def test_sampled_play_is_that_of_training_and_repeats_itself_by_its_seed():
    spec = PolicySpec((4,), ActionSpec("discrete", (2,)), hidden=())
    # Greedy play always goes left, sampled play half of the time.
    weights = {"policy.0.weight": np.zeros((2, 4), np.float32), "policy.0.bias": np.array([0.01, 0.0], np.float32)}
    undecided = load_policy(pack_policy(spec, weights))
    greedy = evaluate(undecided, CARTPOLE, 20, 5)
    sampled, again = (evaluate(undecided, CARTPOLE, 20, 5, sampled=True) for _ in range(2))
    assert greedy.max() <= 11
    assert sampled.mean() > 15
    np.testing.assert_array_equal(sampled, again)
