import numpy as np
import pytest

from parlmesh.algorithms.n_step import n_step
from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError
from parlmesh.policies import PolicySpec, load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate
from parlmesh.training.dqn_trainer import DqnTrainer
from parlmesh.training.numpy_q_model import DenseQModel
from parlmesh.training.replay.config import ReplayConfig
from parlmesh.training.settings.dqn import DqnConfig
from parlmesh.training.torch_q_model import TorchQModel
from parlmesh.types import ACTION, OBSERVATION, REWARD, VALID, ActionSpec, EnvironmentSpec, Fragment

CARTPOLE = {"id": "CartPole-v1"}
TWO = ActionSpec("discrete", (2,))
REPLAY = {"capacity_steps": 2_000, "min_steps": 100, "samples_per_insert": 4.0}
MODELS = [DenseQModel, TorchQModel]
KINDS = ["uniform", "prioritised"]


def trainer(
    model=DenseQModel,
    seed=0,
    environment=None,
    network="mlp",
    hidden=(16,),
    normalised=False,
    replay=None,
    **settings,
):
    environment = environment or environment_spec(CARTPOLE)
    config = DqnConfig(**{"minibatch_steps": 32, "replay": {**REPLAY, **(replay or {})}, **settings})
    spec = PolicySpec.for_environment(
        environment,
        hidden=hidden,
        network=network,
        normalised=normalised,
        choice="epsilon_greedy",
        dueling=config.dueling,
    )
    rng = np.random.default_rng(seed)
    return DqnTrainer(spec, environment, config, model(spec, config, rng), rng)


def fragment(seed=0, steps=16, envs=16):
    policy = load_policy(trainer().policy_blob())
    return Collector(CARTPOLE, envs, collector_seed(seed, "a", 1)).collect(policy, steps)


def changed(original, **columns):
    return Fragment({**original.columns, **columns}, original.episodes)


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_the_replay_holds_exactly_the_valid_steps_with_their_returns():
    dqn, one = trainer(n_step=3), fragment(steps=40)
    update = dqn.update([one], 0.0)
    columns, held = one.columns, dqn.tensors()
    valid = columns[VALID]
    assert update.steps == valid.sum() < valid.size
    np.testing.assert_array_equal(held["replay.observation"], columns[OBSERVATION][:-1][valid])
    np.testing.assert_array_equal(held["replay.action"], columns[ACTION][valid])
    expected = n_step(columns[REWARD], columns["terminated"], columns["truncated"], steps=3, discount=0.99)
    np.testing.assert_array_equal(held["replay.return"], expected.returns[valid])
    rows = expected.rows[valid], np.nonzero(valid)[1]
    np.testing.assert_array_equal(held["replay.next_observation"], columns[OBSERVATION][rows])


def test_samples_never_exceed_the_ratio_and_stay_within_a_minibatch_of_it():
    dqn, inserted, sampled = trainer(), 0, 0
    for seed in range(8):
        update = dqn.update([fragment(seed)], 0.0)
        inserted += update.steps
        sampled += int(update.metrics["replay/sampled_steps"])
        owed = 4.0 * max(0, inserted - 100)
        assert owed - 32 < sampled <= owed
    assert sampled > 1_000


def test_what_is_evicted_is_counted():
    dqn = trainer(replay={"capacity_steps": 400})
    updates = [dqn.update([fragment(seed)], 0.0) for seed in range(3)]
    inserted = sum(update.steps for update in updates)
    evicted = sum(update.metrics["replay/evicted_steps"] for update in updates)
    assert evicted == inserted - 400 > 0
    assert updates[-1].metrics["replay/steps"] == 400


def test_nothing_is_learnt_before_there_are_enough_steps():
    dqn = trainer(replay={"min_steps": 1_000})
    before = unpack_policy(dqn.policy_blob())[1]
    update = dqn.update([fragment()], 0.0)
    assert update.applied
    assert update.metrics["update/gradient_steps"] == 0
    same(unpack_policy(dqn.policy_blob())[1], before)


def test_invalid_steps_have_no_influence():
    original = fragment(steps=40)
    noisy = changed(original, action=np.where(original.columns[VALID], original.columns[ACTION], 1))
    assert (noisy.columns[ACTION] != original.columns[ACTION]).any()
    one, other = trainer(), trainer()
    one.update([original], 0.0)
    other.update([noisy], 0.0)
    assert one.policy_blob() == other.policy_blob()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_a_loss_that_is_not_finite_undoes_the_whole_update(model, kind):
    dqn = trainer(model, replay={"kind": kind, "capacity_steps": 300})
    dqn.update([fragment(0)], 0.0)
    before = dqn.tensors()
    # Finite as a step of experience, and not finite as a loss.
    huge = np.full_like(fragment().columns[REWARD], 3e38)
    with np.errstate(invalid="ignore", over="ignore"):
        update = dqn.update([changed(fragment(1), reward=huge)], 0.5)
    assert not update.applied
    same(dqn.tensors(), before)
    assert dqn.update([fragment(2)], 0.5).applied


def test_experience_that_is_not_finite_never_enters_the_replay():
    dqn = trainer()
    poisoned = fragment().columns[REWARD].copy()
    poisoned[3, 3] = np.inf
    before = dqn.tensors()
    assert not dqn.update([changed(fragment(), reward=poisoned)], 0.0).applied
    same(dqn.tensors(), before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", MODELS)
def test_a_restored_trainer_goes_on_exactly_as_the_original(model, kind):
    original, copy = (trainer(model, seed, replay={"kind": kind}, normalised=True) for seed in (0, 9))
    original.update([fragment(0), fragment(1)], 0.0)
    copy.restore(original.tensors())
    for seed in (2, 3):
        original.update([fragment(seed)], 0.1)
        copy.update([fragment(seed)], 0.1)
    assert original.policy_blob() == copy.policy_blob()


def test_without_its_steps_a_restored_trainer_fills_the_replay_before_it_learns():
    original, copy = (trainer(seed=seed, replay={"checkpointed": False, "min_steps": 300}) for seed in (0, 9))
    for seed in (0, 1, 2):
        original.update([fragment(seed)], 0.3)
    tensors = original.tensors()
    assert not any(name.startswith("replay.") for name in tensors)
    copy.restore(tensors)
    assert copy.policy_blob() == original.policy_blob()
    steps = [copy.update([fragment(seed)], 0.3).metrics["update/gradient_steps"] for seed in (3, 4)]
    assert steps[0] == 0 < steps[1] < 40


def test_a_replay_of_another_size_is_not_restored_into():
    original, smaller = trainer(), trainer(replay={"capacity_steps": 150})
    original.update([fragment()], 0.0)
    with pytest.raises(ConfigError, match=r"was saved with 2[0-9]{2} steps; this one has room for 150"):
        smaller.restore(original.tensors())


def test_a_replay_without_room_for_its_first_steps_is_refused():
    with pytest.raises(ConfigError, match="room for 21 steps of 48 bytes; min_steps must be at most that, got 100"):
        trainer(replay={"capacity_bytes": 1024})


def made_up(environment, seed, steps=12, envs=10):
    """A fragment of any discrete environment, as a collector would write it."""
    rng = np.random.default_rng(seed)
    grid, choices = (steps, envs), environment.action.sizes[0]
    ended = rng.random(grid) < 0.1
    observations = rng.normal(size=(steps + 1, envs, *environment.observation_shape)) * 50 + 100
    columns = {
        "observation": observations.astype(environment.observation_dtype),
        "action": rng.integers(0, choices, grid),
        "log_prob": np.full(grid, -1.0, np.float32),
        "reward": rng.normal(size=grid).astype(np.float32),
        "terminated": ended,
        "truncated": (rng.random(grid) < 0.1) & ~ended,
        "valid": np.concatenate([np.ones((1, envs), bool), ~ended[:-1]]),
    }
    if environment.masked:
        mask = rng.random((steps + 1, envs, choices)) < 0.6
        mask[..., 0] = True
        columns["action_mask"] = mask
    return Fragment(columns, [])


@pytest.mark.parametrize("settings", [{"double": False}, {"dueling": True}, {"target_interval": 1, "target_rate": 0.1}])
@pytest.mark.parametrize("kind", KINDS)
def test_torch_and_numpy_make_the_same_updates(kind, settings):
    environment = EnvironmentSpec((4,), "float32", ActionSpec("discrete", (3,)), masked=True)
    made = [
        trainer(model, environment=environment, normalised=True, replay={"kind": kind}, **settings) for model in MODELS
    ]
    for seed in range(3):
        for dqn in made:
            assert dqn.update([made_up(environment, seed)], 0.1).applied
    one, other = (unpack_policy(dqn.policy_blob())[1] for dqn in made)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=2e-3, err_msg=name)


def test_convolutions_train_on_images_of_bytes_that_stay_bytes():
    environment = EnvironmentSpec((2, 6, 6), "uint8", ActionSpec("discrete", (3,)))
    dqn = trainer(TorchQModel, environment=environment, network="conv", dueling=True)
    before = dqn.policy_blob()
    assert dqn.update([made_up(environment, 0)], 0.0).applied
    assert dqn.policy_blob() != before
    assert dqn.tensors()["replay.planes"].dtype == np.uint8


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_replay_draws_no_step_whose_images_are_gone_and_is_restored_exactly(kind):
    environment = EnvironmentSpec((2, 6, 6), "uint8", ActionSpec("discrete", (3,)))
    # Room for about two of the five fragments' images, and for all their steps.
    size = {"kind": kind, "capacity_steps": 1_000, "capacity_bytes": 40_000, "min_steps": 32}
    dqn, again = (
        trainer(TorchQModel, environment=environment, network="conv", replay=size, minibatch_steps=16) for _ in "ab"
    )
    for seed in range(5):
        update = dqn.update([made_up(environment, seed)], 0.0)
        assert update.applied
    frames, replay = dqn._frames, dqn._replay
    assert frames.added > frames.capacity
    assert 0 < update.metrics["replay/steps"] < replay.inserted
    drawn = replay.sample(500, 0.4, np.random.default_rng(0)).rows
    oldest = frames.added - frames.capacity
    assert min(drawn["observation"].min(), drawn["next_observation"].min()) >= oldest
    again.restore(dqn.tensors())
    for each in (dqn, again):
        each.update([made_up(environment, 9)], 0.5)
    same(dqn.tensors(), again.tensors())


def test_a_replay_of_stacked_images_has_room_for_several_times_the_steps(caplog):
    environment = EnvironmentSpec((4, 84, 84), "uint8", ActionSpec("discrete", (3,)))
    kept = DqnConfig(replay=ReplayConfig(capacity_steps=200_000, min_steps=1))
    spec = PolicySpec.for_environment(environment, network="nature", hidden=(8,), choice="epsilon_greedy")
    rng = np.random.default_rng(0)
    for stacked in (1, 4):
        DqnTrainer(spec, environment, kept, TorchQModel(spec, kept, rng), rng, stacked=stacked)
    unknown, known = (record.parlmesh_fields["steps"] for record in caplog.records)
    assert unknown > 1024**3 / (2 * 4 * 84 * 84) * 1.7, "the next observation is not kept again"
    assert known > 3.5 * unknown
    assert known < kept.replay.capacity_steps


def test_what_is_allowed_next_decides_the_targets():
    environment = EnvironmentSpec((4,), "float32", ActionSpec("discrete", (3,)), masked=True)
    one, other = made_up(environment, 0), made_up(environment, 0)
    only_first = np.zeros_like(one.columns["action_mask"])
    only_first[..., 0] = True
    first, second = (trainer(environment=environment, n_step=1) for _ in range(2))
    first.update([one], 0.0)
    second.update([changed(other, action_mask=only_first)], 0.0)
    assert first.policy_blob() != second.policy_blob()


def test_a_few_thousand_steps_teach_cartpole():
    dqn = trainer(
        hidden=(64, 64),
        minibatch_steps=64,
        learning_rate=2e-3,
        discount=0.98,
        n_step=16,
        target_interval=1,
        target_rate=0.01,
        reward_scale=0.1,
        replay={"capacity_steps": 50_000, "min_steps": 1_000, "samples_per_insert": 8.0},
    )
    collector = Collector(CARTPOLE, 8, collector_seed(0, "actor-0", 1))
    steps = 0
    returns: list[float] = []
    while steps < 14_000:
        steps += dqn.update([collector.collect(load_policy(dqn.policy_blob()), 64)], steps / 80_000).steps
        if steps > 3_000 * (len(returns) + 1):
            returns.append(evaluate(load_policy(dqn.policy_blob()), CARTPOLE, 20, seed=100).mean())
    assert max(returns) >= 300


def test_exploration_and_the_learning_rate_fall_with_the_budget():
    settings = {"exploration": {"start": 1.0, "final": 0.1, "share": 0.5}, "final_learning_rate_fraction": 0.5}
    found = [trainer(**settings).update([fragment()], progress).metrics for progress in (0.0, 0.25, 0.5, 1.0)]
    np.testing.assert_allclose([each["policy/epsilon"] for each in found], [1.0, 0.55, 0.1, 0.1])
    np.testing.assert_allclose([each["update/learning_rate"] for each in found], [1e-3, 8.75e-4, 7.5e-4, 5e-4])
    dqn = trainer(**settings)
    dqn.update([fragment()], 0.25)
    assert unpack_policy(dqn.policy_blob())[1]["policy.epsilon"] == np.float32(0.55)
