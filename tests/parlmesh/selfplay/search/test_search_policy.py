"""Search results travel with the steps, are checked like everything from strangers, and are learnt."""

import numpy as np
import pytest

from learner.experience.trajectory_schema import TrajectorySchema
from parlmesh.algorithm_choice import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.plugins import load_plugins
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, evaluate, play_match
from parlmesh.training.settings.run import TrainingConfig
from parlmesh.types import (
    ACTION,
    ACTION_MASK,
    LOG_PROB,
    TARGET_ACTION,
    TARGET_CHANCE,
    VALID,
    EpisodeColumns,
    Fragment,
    Search,
    Trajectory,
)
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.wire import trajectory_from_proto, trajectory_to_request

TICTACTOE = {"id": "games/tictactoe", "kwargs": {}}
STEPS, GAMES = 3, 16


@pytest.fixture(scope="module")
def searched():
    """A trainer with search, its environment, and one fragment that its first policy collected."""
    load_plugins(["selfplay"])
    config = TrainingConfig.model_validate(
        {
            "environment": TICTACTOE,
            "network": "board",
            "hidden": [8],
            "search": {"simulations": 8},
            "ppo": {"epochs": 20, "minibatch_steps": 64, "learning_rate": 0.01, "discount": 1.0, "smoothing": 1.0},
        }
    )
    environment = environment_spec(TICTACTOE)
    trainer = trainer_for(config, policy_for(config, environment), environment)
    policy = load_policy(trainer.policy_blob())
    search = config.search.in_rollouts()
    collector = Collector(TICTACTOE, GAMES, np.random.SeedSequence(0), search=search)
    return trainer, environment, collector.collect(policy, STEPS, [Opponent(NEWEST, policy)])


def test_targets_are_chances_of_legal_moves_that_the_chosen_one_is_among(searched):
    _, environment, fragment = searched
    columns = fragment.columns
    schema = TrajectorySchema(environment, 0, trajectory_steps=STEPS, num_envs=GAMES, searched=True)
    schema.check(dict(columns))
    valid = columns[VALID]
    assert columns[TARGET_CHANCE].shape == (STEPS, GAMES, 9)
    chosen = columns[TARGET_ACTION] == columns[ACTION][..., None]
    chance = np.where(chosen, columns[TARGET_CHANCE], 0.0).max(axis=-1)
    np.testing.assert_allclose(np.exp(columns[LOG_PROB])[valid], chance[valid], rtol=1e-4)


def test_targets_travel_over_the_wire(searched):
    _, _, fragment = searched
    request = trajectory_to_request(Trajectory("run", "actor", 1, 1, 1, fragment))
    read = trajectory_from_proto(pb.UploadTrajectoriesRequest.FromString(request.request).trajectory)
    for name in (TARGET_ACTION, TARGET_CHANCE):
        np.testing.assert_array_equal(read.fragment.columns[name], fragment.columns[name])


def test_targets_from_a_stranger_are_checked(searched):
    _, environment, fragment = searched
    schema = TrajectorySchema(environment, 0, trajectory_steps=STEPS, num_envs=GAMES, searched=True)

    def refused(name, index, value):
        columns = {key: column.copy() for key, column in fragment.columns.items()}
        columns[name][index] = value
        with pytest.raises(InvalidInput) as caught:
            schema.check(columns)
        return caught.value.message

    assert "target_action must lie in 0..8, got" in refused(TARGET_ACTION, (0, 0, 0), 9)
    assert "sum to 1" in refused(TARGET_CHANCE, (0, 0), 1.0)
    assert "at least" in refused(TARGET_CHANCE, (0, 0, 0), -1.0)
    assert "not finite" in refused(TARGET_CHANCE, (0, 0, 0), np.nan)
    assert "forbids the action" in refused(ACTION_MASK, (0, 0), False)
    with pytest.raises(InvalidInput, match="target_action is missing"):
        schema.check({key: column for key, column in fragment.columns.items() if key != TARGET_ACTION})
    unsearched = TrajectorySchema(environment, 0, trajectory_steps=STEPS, num_envs=GAMES)
    with pytest.raises(InvalidInput, match="target_action is unknown"):
        unsearched.check(dict(fragment.columns))


def test_the_policy_comes_nearer_to_what_search_found_and_values_to_outcomes(searched):
    trainer, _, fragment = searched
    before = trainer.tensors()
    first = trainer.update([fragment], 0.0)
    second = trainer.update([fragment], 0.0)
    trainer.restore(before)
    assert first.applied
    assert second.metrics["loss/policy"] < 0.5 * first.metrics["loss/policy"]
    assert second.metrics["loss/value"] < first.metrics["loss/value"]


def test_a_wrong_target_is_learnt_as_it_is(searched):
    """The planted error: if targets were read with the wrong actions, this one would not become the likeliest."""
    trainer, _, fragment = searched
    before = trainer.tensors()
    columns = {key: column.copy() for key, column in fragment.columns.items()}
    # The last legal square, whatever search found.
    mask = columns[ACTION_MASK][:-1]
    columns[TARGET_ACTION][..., 0] = 8 - mask[..., ::-1].argmax(axis=-1)
    columns[TARGET_CHANCE][...] = 0.0
    columns[TARGET_CHANCE][..., 0] = 1.0
    for _ in range(4):
        trainer.update([Fragment(columns, EpisodeColumns.of([]))], 0.0)
    policy = load_policy(trainer.policy_blob())
    trainer.restore(before)
    valid = columns[VALID]
    chosen = policy.greedy(columns["observation"][:-1][valid], mask[valid]).action
    assert np.mean(chosen == columns[TARGET_ACTION][..., 0][valid]) > 0.9


def test_evaluations_and_matches_search_too(searched):
    trainer, _, _ = searched
    policy = load_policy(trainer.policy_blob())
    # A player that looks this far ahead seldom loses to a random one.
    assert evaluate(policy, TICTACTOE, 20, 1, search=Search(32)).mean() > 0.5
    games = play_match(policy, policy, TICTACTOE, 4, 1, search=Search(8))
    assert len(games) == 4


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"environment": {"id": "CartPole-v1"}, "network": "mlp"}, "has one player"),
        ({"network": "mlp", "hidden": [8]}, "got ppo with mlp"),
        ({"algorithm": "dqn", "network": "conv"}, "got dqn with conv"),
    ],
)
def test_impossible_searches_are_refused(searched, changed, said):
    settings = {"environment": TICTACTOE, "network": "board", "hidden": [8], "search": {"simulations": 8}} | changed
    config = TrainingConfig.model_validate(settings)
    with pytest.raises(ConfigError, match=said):
        policy_for(config, environment_spec(config.environment.model_dump()))


def test_a_search_that_would_need_too_much_room_is_refused(searched):
    trainer, _, _ = searched
    policy = load_policy(trainer.policy_blob())
    with pytest.raises(InvalidInput, match="must be at most"):
        evaluate(policy, TICTACTOE, 200, 1, search=Search(10_000))
