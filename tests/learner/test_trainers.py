import pytest

from learner.config import TrainingConfig
from learner.trainers import policy_for, trainer_for
from parlmesh.environments import environment_spec
from parlmesh.errors import ConfigError
from parlmesh.training.dqn_trainer import DqnTrainer
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.q_learning_trainer import QLearningTrainer


def chosen(**settings):
    config = TrainingConfig(**settings)
    environment = environment_spec(config.environment.model_dump())
    policy = policy_for(config, environment)
    return policy, trainer_for(config, policy, environment)


def test_an_algorithm_has_its_own_trainer_and_choice_of_actions():
    policy, trainer = chosen()
    assert isinstance(trainer, PpoTrainer)
    assert policy.choice == "sample"
    policy, trainer = chosen(algorithm="dqn", dqn={"dueling": True})
    assert isinstance(trainer, DqnTrainer)
    assert (policy.choice, policy.dueling, policy.network) == ("epsilon_greedy", True, "mlp")
    policy, trainer = chosen(algorithm="q_learning", environment={"id": "Taxi-v4"})
    assert isinstance(trainer, QLearningTrainer)
    assert (policy.choice, policy.network, policy.hidden) == ("epsilon_greedy", "tabular", ())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "dqn", "environment": {"id": "Pendulum-v1"}}, "those of Pendulum-v1 are continuous"),
        ({"algorithm": "q_learning"}, "q_learning needs states; CartPole-v1 gives arrays"),
        ({"algorithm": "dqn", "network": "recurrent"}, "must be mlp or conv for dqn, got recurrent"),
    ],
)
def test_an_algorithm_that_does_not_fit_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        chosen(**settings)
