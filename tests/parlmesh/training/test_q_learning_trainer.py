import numpy as np

from parlmesh.environments import environment_spec
from parlmesh.policies import PolicySpec, load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate
from parlmesh.training.q_learning_trainer import QLearningTrainer
from parlmesh.training.settings.q_learning import QLearningConfig
from parlmesh.types import REWARD, VALID, Fragment

LAKE = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}}


def trainer(**settings):
    spec = PolicySpec.for_environment(environment_spec(LAKE), network="tabular", hidden=(), choice="epsilon_greedy")
    return QLearningTrainer(spec, QLearningConfig(**settings))


def collector(seed=0, envs=8):
    return Collector(LAKE, envs, collector_seed(seed, "a", 1))


def fragment(seed=0, steps=40):
    return collector(seed).collect(load_policy(trainer().policy_blob()), steps)


def changed(original, **columns):
    return Fragment({**original.columns, **columns}, original.episodes)


def test_a_few_episodes_teach_the_way_over_a_lake_that_is_not_slippery():
    learning, collecting = trainer(exploration={"final": 0.1, "share": 1.0}), collector()
    for update in range(60):
        assert learning.update([collecting.collect(load_policy(learning.policy_blob()), 32)], update / 60).applied
    np.testing.assert_array_equal(evaluate(load_policy(learning.policy_blob()), LAKE, 5, seed=0), 1.0)


def test_a_reward_reaches_every_step_that_led_to_it_in_one_update():
    learning = trainer(step_size=1.0, discount=0.5)
    states = np.array([0, 1, 2, 6, 10]).reshape(5, 1)
    grid = np.zeros((4, 1), bool)
    columns = {
        "observation": states,
        "action": np.full((4, 1), 2),
        "reward": np.array([[0], [0], [0], [1]], np.float32),
        "terminated": np.array([[False], [False], [False], [True]]),
        "truncated": grid,
        "valid": ~grid,
    }
    assert learning.update([Fragment(columns, [])], 0.0).steps == 4
    table = learning.tensors()["table"]
    assert table[states[:4, 0], 2].tolist() == [0.125, 0.25, 0.5, 1.0]
    assert np.count_nonzero(table) == 4


def test_invalid_steps_have_no_influence():
    original = fragment()
    invalid = ~original.columns[VALID]
    assert invalid.any()
    noisy = changed(original, reward=np.where(invalid, np.float32(9), original.columns[REWARD]))
    one, other = trainer(), trainer()
    assert one.update([original], 0.0).steps == np.count_nonzero(~invalid)
    other.update([noisy], 0.0)
    assert one.policy_blob() == other.policy_blob()


def test_a_value_that_is_not_finite_undoes_the_update():
    learning = trainer()
    learning.update([fragment(0)], 0.0)
    before = learning.policy_blob()
    poisoned = fragment(1).columns[REWARD].copy()
    poisoned[fragment(1).columns[VALID]] = np.inf
    with np.errstate(invalid="ignore"):
        assert not learning.update([changed(fragment(1), reward=poisoned)], 0.5).applied
    assert learning.policy_blob() == before


def test_a_restored_trainer_goes_on_exactly_as_the_original():
    original, copy = trainer(), trainer()
    original.update([fragment(0)], 0.2)
    copy.restore(original.tensors())
    assert copy.policy_blob() == original.policy_blob()
    for learning in (original, copy):
        learning.update([fragment(1)], 0.3)
    assert copy.policy_blob() == original.policy_blob()


def test_step_size_and_exploration_fall_with_the_budget():
    settings = {"step_size": 0.4, "final_step_size": 0.1, "exploration": {"final": 0.2, "share": 1.0}}
    found = [trainer(**settings).update([fragment()], progress).metrics for progress in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose([each["update/learning_rate"] for each in found], [0.4, 0.2, 0.1])
    np.testing.assert_allclose([each["policy/epsilon"] for each in found], [1.0, 0.6, 0.2])
    learning = trainer(**settings)
    learning.update([fragment()], 0.5)
    assert unpack_policy(learning.policy_blob())[1]["policy.epsilon"] == np.float32(0.6)
