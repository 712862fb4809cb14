import numpy as np
import pytest
import torch

from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.policies import PolicySpec, load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate
from parlmesh.training.continuous.critics import TwinCritics
from parlmesh.training.continuous.perceptron import Perceptron, initial
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import ACTION, OBSERVATION, REWARD, ActionSpec, EnvironmentSpec, Fragment

PENDULUM = {"id": "Pendulum-v1"}
REPLAY = {"capacity_steps": 2_000, "min_steps": 64, "samples_per_insert": 4.0}
TWO = ActionSpec("continuous", low=(-2.0, 0.0), high=(2.0, 1.0))
ALGORITHMS = ["sac", "td3"]


def config(algorithm="sac", seed=0, hidden=(16, 16), **settings):
    own = {"minibatch_steps": 16, "random_steps": 100, "replay": REPLAY, **settings}
    values = {"algorithm": algorithm, "seed": seed, "hidden": hidden, "environment": PENDULUM, algorithm: own}
    return TrainingConfig.model_validate(values)


def trainer(algorithm="sac", seed=0, environment=None, **settings):
    wanted, spec = config(algorithm, seed, **settings), environment or environment_spec(PENDULUM)
    return trainer_for(wanted, policy_for(wanted, spec), spec, max_policy_lag=0)


def fragment(policy, seed=0, steps=16, envs=4):
    return Collector(PENDULUM, envs, collector_seed(seed, "a", 1)).collect(load_policy(policy.policy_blob()), steps)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_gradients_by_hand_are_those_of_autograd(activation):
    sizes, rng = (5, 8, 7, 1), np.random.default_rng(0)
    parameters = initial(sizes, rng)
    gradient, inputs = torch.zeros_like(parameters), torch.randn(9, 5, generator=torch.Generator().manual_seed(1))
    by_hand = Perceptron(sizes, activation, parameters, gradient)
    by_hand.forward(inputs)
    by_hand.backward(torch.full((9, 1), 1 / 9))
    known, seen = parameters.clone().requires_grad_(), inputs.clone().requires_grad_()
    hidden, layers = seen, Perceptron(sizes, activation, known, gradient).layers
    for index, (weight, bias) in enumerate(layers):
        hidden = hidden @ weight + bias
        if index < 2:
            hidden = torch.tanh(hidden) if activation == "tanh" else torch.relu(hidden)
    hidden.mean().backward()
    torch.testing.assert_close(gradient, known.grad)
    assert seen.grad is not None
    torch.testing.assert_close(by_hand.inputs_gradient(torch.full((9, 1), 1 / 9), 3), seen.grad[:, 3:])


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_what_a_pass_left_behind_does_not_reach_the_next_one(activation):
    sizes, rng = (5, 8, 7, 2), torch.Generator().manual_seed(1)
    parameters = initial(sizes, np.random.default_rng(0))
    used = Perceptron(sizes, activation, parameters, torch.zeros_like(parameters))
    for rows in (4, 9, 9, 3):
        inputs, flow = torch.randn(rows, 5, generator=rng), torch.randn(rows, 2, generator=rng)
        gradient, expected = torch.zeros_like(parameters), torch.zeros_like(parameters)
        used._gradients = Perceptron(sizes, activation, parameters, gradient)._gradients
        fresh = Perceptron(sizes, activation, parameters, expected)
        outputs = used.forward(inputs)
        assert torch.equal(outputs, fresh.forward(inputs))
        used.backward(flow)
        fresh.backward(flow)
        assert torch.equal(gradient, expected)
        chosen = torch.tensor([rows - 1, 0])
        given = flow[chosen]
        assert torch.equal(used.inputs_gradient(given, 3, chosen), fresh.inputs_gradient(given, 3, chosen))


def critics(seed=0):
    spec = PolicySpec((3,), TWO, hidden=(8,), activation="relu", choice="squashed")
    return TwinCritics(spec, np.random.default_rng(seed), torch.device("cpu"))


def test_the_lower_critic_is_believed_row_by_row_and_so_is_its_gradient():
    rng = torch.Generator().manual_seed(0)
    both, features, actions = critics(), torch.randn(40, 3, generator=rng), torch.randn(40, 2, generator=rng)
    values, gradient = both.lowest(features, actions)
    each = both.target(features, actions)  # still equal to the online ones
    assert 0 < (each[0] < each[1]).sum() < 40
    torch.testing.assert_close(values, each.amin(dim=0))
    step = 1e-3
    for dimension in range(2):
        nudge = torch.zeros(40, 2)
        nudge[:, dimension] = step
        slope = (both.lowest(features, actions + nudge)[0] - both.lowest(features, actions - nudge)[0]) / (2 * step)
        assert ((slope - gradient[:, dimension]).abs() < 1e-2).float().mean() > 0.9  # but at kinks
    torch.testing.assert_close(both.first(features, actions)[0], each[0])


def test_targets_follow_by_the_rate():
    both = critics()
    before = both.tensors()
    features, actions = torch.ones(4, 3), torch.ones(4, 2)
    both.fit(features, actions, torch.full((4,), 5.0), None, 0.1)
    both.follow(0.25)
    after = both.tensors()
    expected = 0.75 * before["target_critics"] + 0.25 * after["critics"]
    np.testing.assert_allclose(after["target_critics"], expected, atol=1e-7)
    assert not np.array_equal(after["critics"], before["critics"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_first_steps_are_random_and_later_ones_are_the_policys(algorithm):
    learning = trainer(algorithm)
    weights = unpack_policy(learning.policy_blob())[1]
    assert weights["policy.epsilon"] == 1.0
    random = fragment(learning).columns[ACTION]
    assert random.min() < -0.8
    assert random.max() > 0.8
    learning.update([fragment(learning)], 0.0)
    assert unpack_policy(learning.policy_blob())[1]["policy.epsilon"] == 1.0
    update = learning.update([fragment(learning, 1)], 0.0)
    assert update.metrics["update/gradient_steps"] > 0
    assert unpack_policy(learning.policy_blob())[1]["policy.epsilon"] == 0.0
    if algorithm == "td3":
        assert weights["policy.noise"] == np.float32(0.1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_restored_trainer_goes_on_exactly_as_the_original(algorithm):
    original, copy = trainer(algorithm), trainer(algorithm, seed=9)
    first = [fragment(original, seed) for seed in range(3)]
    original.update(first, 0.0)
    copy.restore(original.tensors())
    for seed in (4, 5):
        more = [fragment(original, seed)]
        original.update(more, 0.1)
        copy.update(more, 0.1)
    assert original.policy_blob() == copy.policy_blob()
    same(original.tensors(), copy.tensors())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_loss_that_is_not_finite_undoes_the_whole_update(algorithm):
    learning = trainer(algorithm)
    learning.update([fragment(learning)], 0.0)
    learning.update([fragment(learning, 1)], 0.0)
    before, poisoned = learning.tensors(), fragment(learning, 2)
    huge = Fragment({**poisoned.columns, REWARD: np.full_like(poisoned.columns[REWARD], 3e38)}, [])
    with np.errstate(all="ignore"):
        assert not learning.update([huge], 0.5).applied
    same(learning.tensors(), before)
    assert learning.update([poisoned], 0.5).applied


def episodes(seed, terminated):
    """One step a row: reward 1 for ever, ended by the world or only cut off."""
    rng = np.random.default_rng(seed)
    flags = np.ones((1, 64), np.bool_)
    columns = {
        OBSERVATION: rng.normal(size=(2, 64, 2)).astype(np.float32),
        ACTION: rng.uniform(-1, 1, (1, 64, 2)).astype(np.float32),
        "log_prob": np.zeros((1, 64), np.float32),
        REWARD: np.ones((1, 64), np.float32),
        "terminated": flags if terminated else ~flags,
        "truncated": ~flags if terminated else flags,
        "valid": flags,
    }
    return Fragment(columns, [])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_values_end_with_the_world_and_not_with_the_time(algorithm):
    """A reward of 1 with discount 0.9 is worth 1 where the world ends after it, and 10 where it would go on."""
    environment = EnvironmentSpec((2,), "float32", TWO)
    settings = {"discount": 0.9, "learning_rate": 0.01, "target_rate": 0.05}
    if algorithm == "sac":
        settings["temperature"] = 0.0
    values = {}
    for terminated in (True, False):
        learning = trainer(algorithm, environment=environment, **settings)
        for seed in range(25):
            update = learning.update([episodes(seed, terminated)], 0.0)
        values[terminated] = update.metrics["value/mean"]
    assert values[True] == pytest.approx(1.0, abs=0.2)
    assert 4.0 < values[False] < 12.0


def test_the_temperature_falls_while_the_policy_is_more_random_than_asked_and_rises_when_it_is_less():
    environment = EnvironmentSpec((2,), "float32", TWO)
    found = {}
    for target in (-20.0, 20.0):
        learning = trainer(environment=environment, target_entropy=target, learning_rate=0.01)
        found[target] = [learning.update([episodes(seed, True)], 0.0).metrics for seed in range(6)][-1]
    assert found[-20.0]["policy/temperature"] < 0.8
    assert found[20.0]["policy/temperature"] > 1.2
    fixed = trainer(environment=environment, temperature=0.2)
    assert fixed.update([episodes(0, True)] * 3, 0.0).metrics["policy/temperature"] == pytest.approx(0.2)


def test_usual_settings_are_the_algorithms_and_what_is_asked_for_stands():
    usual = TrainingConfig(algorithm="sac")
    assert (usual.num_envs, usual.trajectory_steps, usual.hidden, usual.activation) == (4, 8, (256, 256), "relu")
    assert TrainingConfig(algorithm="td3", num_envs=2, hidden=(8,)).hidden == (8,)
    assert TrainingConfig().hidden == (64, 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environment": {"id": "CartPole-v1"}}, "sac needs continuous actions; those of CartPole-v1 are discrete"),
        ({"network": "recurrent"}, "training.network must be mlp for sac, got recurrent"),
        ({"backend": "numpy"}, "training.backend must be torch or auto for sac, got numpy"),
    ],
)
def test_what_cannot_be_learnt_is_refused(changes, message):
    wanted = TrainingConfig(**{"algorithm": "sac", "environment": PENDULUM, **changes})
    environment = environment_spec(wanted.environment.model_dump())
    with pytest.raises(ConfigError, match=message):
        trainer_for(wanted, policy_for(wanted, environment), environment)


def test_a_specification_of_another_kind_is_refused():
    with pytest.raises(InvalidInput, match="squashed needs continuous actions and an mlp, got discrete and mlp"):
        PolicySpec((4,), ActionSpec("discrete", (2,)), choice="squashed")


def test_sac_finds_the_best_action_of_every_observation():
    """Reward −(a − observation)²: anything wrong with scaling, gradients or signs leaves random's −6.7."""
    environment = EnvironmentSpec((1,), "float32", ActionSpec("continuous", low=(-3.0,), high=(3.0,)))
    learning = trainer(environment=environment, minibatch_steps=64, learning_rate=0.01, discount=0.0)
    rng = np.random.default_rng(0)
    for _ in range(40):
        seen = rng.uniform(-0.8, 0.8, (2, 64, 1)).astype(np.float32)
        action, _, _ = load_policy(learning.policy_blob()).act(seen[0], rng)
        flags = np.ones((1, 64), np.bool_)
        columns = {
            OBSERVATION: seen,
            ACTION: action[None],
            "log_prob": np.zeros((1, 64), np.float32),
            REWARD: -10 * ((action - seen[0]) ** 2).sum(1)[None],
            "terminated": flags,
            "truncated": ~flags,
            "valid": flags,
        }
        assert learning.update([Fragment(columns, [])], 0.0).applied
    policy, seen = load_policy(learning.policy_blob()), np.linspace(-0.8, 0.8, 9, dtype=np.float32)[:, None]
    chosen = policy.greedy(seen).action
    assert np.abs(chosen - seen).max() < 0.25
    np.testing.assert_allclose(policy.to_environment(chosen), 3 * chosen, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_pendulum_is_swung_up_within_10_000_steps(algorithm):
    settings = {"minibatch_steps": 256, "random_steps": 1_000, "learning_rate": 1e-3}
    replay = {"capacity_steps": 20_000, "min_steps": 1_000, "samples_per_insert": 256.0}
    learning = trainer(algorithm, hidden=(64, 64), replay=replay, **settings)
    collector, steps = Collector(PENDULUM, 4, collector_seed(0, "a", 1)), 0
    while steps < 10_000:
        steps += learning.update([collector.collect(load_policy(learning.policy_blob()), 8)], 0.0).steps
    assert evaluate(load_policy(learning.policy_blob()), PENDULUM, 20, 1).mean() > -250
