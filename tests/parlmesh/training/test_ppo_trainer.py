from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parlmesh.policies import PolicySpec, load_policy, unpack_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate
from parlmesh.training.numpy_model import DenseModel
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.training.torch_model import TorchModel
from parlmesh.types import REWARD, VALID, ActionSpec, Array, Fragment

CARTPOLE = {"id": "CartPole-v1"}
TWO = ActionSpec("discrete", (2,))
SPEC = PolicySpec((4,), TWO, hidden=(16,))


def trainer(model=DenseModel, seed=0, spec=SPEC, **settings):
    config, rng = PpoConfig(**{"minibatch_steps": 64, **settings}), np.random.default_rng(seed)
    return PpoTrainer(spec, config, model(spec, config, rng), rng)


def fragment(seed=0, steps=16, envs=16, blob=None):
    policy = load_policy(blob or trainer().policy_blob())
    return Collector(CARTPOLE, envs, collector_seed(seed, "a", 1)).collect(policy, steps)


def changed(original, **columns):
    return Fragment({**original.columns, **columns}, original.episodes)


def test_an_update_counts_only_valid_steps_and_changes_the_policy():
    ppo, batch = trainer(), [fragment(0, steps=64), fragment(1, steps=64)]
    before = ppo.policy_blob()
    update = ppo.update(batch, 0.0)
    assert update.applied
    assert update.steps == sum(int(each.columns[VALID].sum()) for each in batch) < 2 * 64 * 16
    assert ppo.policy_blob() != before


def test_invalid_steps_have_no_influence():
    original = fragment(steps=64)
    invalid = ~original.columns[VALID]
    assert invalid.any()
    noisy = changed(original, log_prob=np.where(invalid, np.float32(-50), original.columns["log_prob"]))
    one, other = trainer(), trainer()
    one.update([original], 0.0)
    other.update([noisy], 0.0)
    assert one.policy_blob() == other.policy_blob()


@pytest.mark.parametrize("model", [DenseModel, TorchModel])
def test_a_value_that_is_not_finite_undoes_the_whole_update(model):
    ppo = trainer(model)
    ppo.update([fragment()], 0.0)
    before = ppo.tensors()
    poisoned = fragment().columns[REWARD].copy()
    poisoned[3, 3] = np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        update = ppo.update([changed(fragment(), reward=poisoned)], 0.0)
    assert not update.applied
    after = ppo.tensors()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("model", [DenseModel, TorchModel])
def test_a_restored_trainer_goes_on_exactly_as_the_original(model):
    original, copy = trainer(model), trainer(model, seed=9)
    original.update([fragment(0)], 0.0)
    copy.restore(original.tensors())
    for seed in (1, 2):
        original.update([fragment(seed)], 0.1)
        copy.update([fragment(seed)], 0.1)
    assert original.policy_blob() == copy.policy_blob()


def test_torch_and_numpy_make_the_same_update():
    policies = []
    for model in (DenseModel, TorchModel):
        ppo = trainer(model, epochs=2)
        ppo.update([fragment(steps=32)], 0.0)
        policies.append(load_policy(ppo.policy_blob()))
    observations = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    np.testing.assert_allclose(policies[0].outputs(observations)[0], policies[1].outputs(observations)[0], atol=1e-3)


@pytest.mark.parametrize("targets", ["weighted", "vtrace"])
@pytest.mark.parametrize("model", [DenseModel, TorchModel])
@pytest.mark.parametrize("normalise", [True, "minibatch"])
def test_under_lag_steps_that_the_policy_would_no_longer_take_have_no_advantage(monkeypatch, model, normalise, targets):
    seen, step = [], model.step

    def watched(self, minibatch, steps):
        seen.append(minibatch.advantages)
        return step(self, minibatch, steps)

    monkeypatch.setattr(model, "step", watched)
    spec = PolicySpec((4,), ActionSpec("discrete", (3,)), hidden=(8,))
    original = made_up(spec, steps=16, envs=8)
    gone = np.random.default_rng(3).random((16, 8)) < 0.5
    log_prob = np.where(gone, np.float32(60.0), original.columns["log_prob"])
    ppo = trainer(model, spec=spec, epochs=1, targets=targets, target_kl=1e9, normalise_advantages=normalise)
    assert ppo.update([changed(original, log_prob=log_prob)], 0.0).applied
    nothing = np.abs(np.concatenate(seen)) < 1e-6
    assert np.count_nonzero(nothing) == np.count_nonzero(gone & original.columns[VALID])


@pytest.mark.parametrize("normalise", [True, "minibatch", False])
def test_on_policy_all_targets_make_the_update_of_gae(normalise):
    blob = trainer().policy_blob()
    policies = []
    for targets in ("gae", "weighted", "vtrace"):
        ppo = trainer(targets=targets, epochs=2, target_kl=None, normalise_advantages=normalise)
        ppo.update([fragment(blob=blob)], 0.0)
        policies.append(unpack_policy(ppo.policy_blob())[1])
    for name in policies[0]:
        for other in policies[1:]:
            np.testing.assert_allclose(policies[0][name], other[name], atol=1e-4, err_msg=name)


def test_weighted_targets_look_as_far_ahead_as_gae_and_vtrace_less_far():
    original = fragment(blob=trainer().policy_blob())
    older = changed(original, log_prob=original.columns["log_prob"] + np.float32(0.5))
    gae, weighted, vtrace = (
        trainer(targets=targets, normalise_advantages=False)._prepare(older.columns, 0.98)
        for targets in ("gae", "weighted", "vtrace")
    )
    np.testing.assert_allclose(weighted.returns, gae.returns, rtol=1e-5)
    assert np.abs(vtrace.returns - gae.returns).max() > 0.01


def test_schedules_fall_to_their_last_share():
    settings = {"final_learning_rate_fraction": 0.5, "learning_rate": 0.01, "epochs": 1}
    ppo = trainer(**settings)
    rates = [ppo.update([fragment()], progress).metrics["update/learning_rate"] for progress in (0.0, 0.5, 1.0)]
    assert rates == pytest.approx([0.01, 0.0075, 0.005])
    wide, narrow = (trainer(clip=0.2, final_clip_fraction=share, learning_rate=0.05) for share in (1.0, 0.01))
    first, last = (each.update([fragment()], 1.0).metrics["policy/clip_fraction"] for each in (wide, narrow))
    assert first < last
    loud, quiet = (trainer(entropy_coefficient=0.5, final_entropy_fraction=share) for share in (1.0, 0.0))
    assert loud.update([fragment()], 1.0).metrics["loss/total"] < quiet.update([fragment()], 1.0).metrics["loss/total"]


@pytest.mark.parametrize("targets", ["gae", "weighted", "vtrace"])
def test_the_discount_goes_linearly_to_its_last_value(targets):
    moving = {"discount": 0.9, "final_discount": 0.98, "targets": targets}
    for progress, discount in ((0.0, 0.9), (0.5, 0.94), (1.0, 0.98)):
        same, fixed = trainer(**moving), trainer(discount=discount, targets=targets)
        for each in (same, fixed):
            each.update([fragment()], progress)
        assert same.policy_blob() == fixed.policy_blob()


def test_without_a_target_kl_every_epoch_is_made():
    settings = {"learning_rate": 0.1, "epochs": 6}
    assert trainer(**settings, target_kl=1e-6).update([fragment()], 0.0).metrics["update/epochs"] == 1.0
    assert trainer(**settings, target_kl=None).update([fragment()], 0.0).metrics["update/epochs"] == 6.0


@pytest.mark.parametrize("model", [DenseModel, TorchModel])
@pytest.mark.parametrize(
    "settings",
    [
        {"adam_epsilon": 0.1},
        {"value_clip": 0.01},
        {"reward_clip": 0.5},
        {"normalise_advantages": False},
    ],
    ids=lambda settings: "-".join(map(str, *settings.items())),
)
def test_a_setting_changes_the_update(model, settings):
    usual, other = trainer(model), trainer(model, **settings)
    before = usual.policy_blob()
    assert other.policy_blob() == before
    for ppo in (usual, other):
        ppo.update([fragment(blob=before)], 0.0)
    assert usual.tensors().keys() == other.tensors().keys()
    found = usual.tensors(), other.tensors()
    assert any(not np.array_equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize(("normalise", "each"), [("minibatch", True), (True, False)])
def test_advantages_are_normalised_by_minibatch_or_by_batch(normalise, each):
    seen = []

    class Watched(DenseModel):
        def step(self, minibatch, steps):
            seen.append(minibatch.advantages)
            return super().step(minibatch, steps)

    ppo = trainer(Watched, epochs=1, target_kl=None, normalise_advantages=normalise)
    ppo.update([fragment()], 0.0)
    assert len(seen) > 1
    scaled = [abs(part.mean()) < 1e-3 and abs(part.std() - 1.0) < 1e-3 for part in (np.concatenate(seen), *seen)]
    assert scaled[0]
    assert set(scaled[1:]) == {each}


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
def test_images_of_bytes_stay_bytes_up_to_the_minibatch_and_are_judged_in_parts(monkeypatch, targets):
    """As 32-bit floats a batch of 84x84x4 images would need gigabytes."""
    monkeypatch.setattr("parlmesh.training.torch_model._PART_BYTES", 5 * 4 * 2 * 6 * 6)
    trained: list[np.dtype[Any]] = []
    judged: list[tuple[int, np.dtype[Any]]] = []

    class Watched(TorchModel):
        def step(self, minibatch, steps):
            trained.append(minibatch.features.dtype)
            judging.clear()
            return super().step(minibatch, steps)

        def _tensor(self, array):
            if judging and array.shape[1:] == (2, 6, 6):
                judged.append((len(array), array.dtype))
            return super()._tensor(array)

    judging = [True]
    spec = PolicySpec((2, 6, 6), SPACES["discrete"], hidden=(8,), network="conv")
    original = made_up(spec)
    images = np.random.default_rng(0).integers(0, 256, original.columns["observation"].shape).astype(np.uint8)
    ppo = trainer(Watched, spec=spec, epochs=1, minibatch_steps=16, targets=targets)
    assert ppo.update([changed(original, observation=images)], 0.0).applied
    assert set(trained) == {np.dtype(np.uint8)}
    assert sum(rows for rows, _ in judged) == 9 * 6
    assert {(rows, dtype) for rows, dtype in judged} <= {(5, np.dtype(np.uint8)), (4, np.dtype(np.uint8))}


SPACES = {
    "discrete": ActionSpec("discrete", (3,)),
    "multi_discrete": ActionSpec("multi_discrete", (2, 3)),
    "continuous": ActionSpec("continuous", low=(-1.0, 0.0), high=(1.0, 2.0)),
}


def made_up(spec, seed=0, steps=8, envs=6):
    """A fragment of any space, as a collector would write it."""
    rng = np.random.default_rng(seed)
    grid, action = (steps, envs), spec.action
    ended = rng.random(grid) < 0.1
    choices = [rng.integers(0, size, grid) for size in action.sizes]
    actions: dict[str, Callable[[], Array]] = {
        "discrete": lambda: choices[0],
        "multi_discrete": lambda: np.stack(choices, axis=2),
        "continuous": lambda: rng.normal(size=(*grid, len(action.low))).astype(np.float32),
    }
    columns: dict[str, Array] = {
        "observation": rng.normal(size=(steps + 1, envs, *spec.observation_shape)).astype(np.float32),
        "action": actions[action.kind](),
        "log_prob": rng.normal(-1.5, 0.2, grid).astype(np.float32),
        "reward": rng.normal(size=grid).astype(np.float32),
        "terminated": ended,
        "truncated": (rng.random(grid) < 0.1) & ~ended,
        "valid": np.concatenate([np.ones((1, envs), bool), ~ended[:-1]]),
    }
    if spec.masked:
        mask = rng.random((steps + 1, envs, action.outputs)) < 0.6
        mask[:-1] |= np.eye(action.outputs, dtype=bool)[columns["action"]]
        columns["action_mask"] = mask
    if spec.state_size:
        columns["state"] = rng.normal(size=(envs, spec.state_size)).astype(np.float32)
    return Fragment(columns, [])


@pytest.mark.parametrize(
    "settings",
    [{}, {"targets": "vtrace"}, {"value_clip": 0.05}, {"targets": "vtrace", "normalise_advantages": "minibatch"}],
    ids=["gae", "vtrace", "value clip", "vtrace by minibatch"],
)
@pytest.mark.parametrize(
    ("kind", "masked"), [("discrete", False), ("discrete", True), ("multi_discrete", False), ("continuous", False)]
)
def test_torch_and_numpy_make_the_same_update_in_every_space(kind, masked, settings):
    spec = PolicySpec((4,), SPACES[kind], hidden=(8,), masked=masked, normalised=True)
    made = [
        trainer(model, spec=spec, epochs=2, minibatch_steps=16, target_kl=None, **settings)
        for model in (DenseModel, TorchModel)
    ]
    for seed in (0, 1):
        for ppo in made:
            assert ppo.update([made_up(spec, seed)], 0.0).applied
    one, other = (unpack_policy(ppo.policy_blob())[1] for ppo in made)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], atol=2e-3, err_msg=name)


@pytest.mark.parametrize("targets", ["gae", "vtrace"])
@pytest.mark.parametrize("network", ["recurrent", "conv"])
def test_networks_with_memory_or_convolutions_train_and_go_on_after_a_restore(network, targets):
    shape = (2, 6, 6) if network == "conv" else (4,)
    spec = PolicySpec(shape, SPACES["discrete"], hidden=(8, 6), network=network)
    original, copy = (
        trainer(TorchModel, seed=seed, spec=spec, minibatch_steps=16, epochs=2, targets=targets) for seed in (0, 9)
    )
    before = original.policy_blob()
    assert original.update([made_up(spec, 0), made_up(spec, 1)], 0.0).applied
    assert original.policy_blob() != before
    copy.restore(original.tensors())
    for ppo in (original, copy):
        ppo.update([made_up(spec, 2)], 0.0)
    assert original.policy_blob() == copy.policy_blob()


def test_memory_is_forgotten_where_an_episode_starts():
    spec = PolicySpec((4,), SPACES["discrete"], hidden=(6,), network="recurrent")
    fragments = [made_up(spec, 3), made_up(spec, 3)]
    fragments[1].columns["state"][:] = 9.0
    fragments[1].columns["valid"][0] = fragments[0].columns["valid"][0] = False
    values = []
    for fragment in fragments:
        ppo = trainer(TorchModel, spec=spec)
        values.append(ppo._prepare(fragment.columns, 0.98).returns)
    # The first step only resets: what comes after it must not know the state before.
    np.testing.assert_allclose(values[0][1:], values[1][1:], atol=1e-6)


def test_the_kl_limit_ends_the_epochs():
    assert trainer(epochs=8, target_kl=1e9).update([fragment()], 0.0).metrics["update/epochs"] == 8
    assert trainer(epochs=8, target_kl=1e-9).update([fragment()], 0.0).metrics["update/epochs"] < 8


def test_the_learning_rate_falls_with_the_budget():
    rates = [
        trainer(learning_rate=1e-3, final_learning_rate_fraction=0.1).update([fragment()], progress).metrics
        for progress in (0.0, 0.5, 1.0, 7.0)
    ]
    np.testing.assert_allclose([each["update/learning_rate"] for each in rates], [1e-3, 5.5e-4, 1e-4, 1e-4])


# One seed is enough to see that training works; the nightly run looks at more.
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_sixty_updates_teach_cartpole(seed):
    spec = PolicySpec((4,), TWO)
    config, rng = PpoConfig(), np.random.default_rng(seed)
    ppo = PpoTrainer(spec, config, DenseModel(spec, config, rng), rng)
    collector = Collector(CARTPOLE, 64, collector_seed(seed, "actor-0", 1))
    returns = []
    for update in range(60):
        policy = load_policy(ppo.policy_blob())
        if update % 10 == 9:
            returns.append(evaluate(policy, CARTPOLE, 20, seed=100).mean())
        ppo.update([collector.collect(policy, 32)], update / 150)
    assert max(returns) >= 475
