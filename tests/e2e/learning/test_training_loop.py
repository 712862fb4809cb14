"""The training loop of the worker pool's first user as written: only its imports and two sizes differ."""

from typing import Any

import numpy as np
import pytest

from parlmesh.action_masks import unpack_mask
from parlmesh.policies import load_policy, pack_policy
from parlmesh.training.numpy_model import DenseModel
from parlmesh.training.ppo_trainer import PpoTrainer
from parlmesh.training.settings.ppo import PpoConfig
from parlmesh.types import ACTION, ACTION_MASK, LOG_PROB, OBSERVATION, VALID, EpisodeColumns, Fragment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

# Word by word from the pool's documentation.
WRITTEN = """
from keisei.training.parallel import ParallelManager
from keisei.core.neural_network import ActorCritic

# Configure the system
env_config = {'board_size': 9, 'max_moves': 200}
model_config = {'input_dim': 81*14, 'hidden_dim': 512, 'action_dim': 2187}
parallel_config = {
    'num_workers': 4,
    'games_per_worker': 10,
    'max_game_length': 200,
    'experience_batch_size': 64,
    'model_sync_interval': 100,
    'timeout': 30.0
}

# Create parallel manager
manager = ParallelManager(env_config, model_config, parallel_config)

# Start worker processes
manager.start_workers()

try:
    for step in range(max_training_steps):
        # Collect experiences from workers
        experiences = manager.collect_experiences()
        
        if experiences:
            # Process experiences and update model
            loss = train_model(experiences)
            
            # Sync updated model to workers
            if step % model_sync_interval == 0:
                manager.sync_model_to_workers()
        
        # Optional: Reset workers periodically
        if step % worker_reset_interval == 0:
            manager.reset_workers()

finally:
    # Clean shutdown
    manager.stop_workers()
"""  # noqa: W293
IMPORTED = """
from keisei.training.parallel import ParallelManager
from keisei.core.neural_network import ActorCritic
"""
CHANGES = {
    IMPORTED: "from parlmesh.selfplay.parallel import ParallelManager\n",
    "81*14": "81*46",
    "2187": "13_527",
}
STEPS, SYNC_INTERVAL, RESET_INTERVAL = 12, 3, 8


class Training:
    """The part that the loop's author writes: PPO over the manager's weights."""

    def __init__(self):
        self.names: dict[str, Any] = {}
        self._trainer: PpoTrainer | None = None
        self.losses, self.updates = [], []
        # The policy that the workers were told to act with, by version.
        self.told = {}
        self.checked = 0

    def train(self, experiences):
        """The policy's loss of one update."""
        manager = self.names["manager"]
        if self._trainer is None:
            config = PpoConfig(targets="gae", epochs=4, learning_rate=0.0003)
            self._model = DenseModel(manager.spec, config, np.random.default_rng(0))
            self._model.load_named(manager.weights)
            self._trainer = PpoTrainer(manager.spec, config, self._model, np.random.default_rng(1))
        for each in experiences:
            self._check(each)
        nothing = EpisodeColumns(np.empty(0, np.float32), np.empty(0, np.int64))
        update = self._trainer.update([Fragment(dict(each.columns), nothing) for each in experiences], 0.0)
        assert update.applied
        self.updates.append(update.steps)
        self.losses.append(update.metrics["loss/policy"])
        manager.weights = self._model.policy_weights()
        # The next sync hands these out, if it comes before the next update.
        self.told[manager.version + 1] = load_policy(pack_policy(manager.spec, manager.weights))
        return self.losses[-1]

    def _check(self, experience):
        """The probabilities that workers report are those of that version's policy."""
        policy = self.told.get(experience.version)
        if policy is None:
            return
        columns = experience.columns
        seen, masks = columns[OBSERVATION][0], columns[ACTION_MASK][0]
        outputs, _ = policy.outputs(seen, unpack_mask(masks, 13_527))
        chances = outputs - outputs.max(axis=1, keepdims=True)
        chances -= np.log(np.exp(chances).sum(axis=1, keepdims=True))
        valid = columns[VALID][0]
        found = chances[np.arange(len(seen)), columns[ACTION][0]]
        assert np.allclose(found[valid], columns[LOG_PROB][0][valid], atol=1e-3)
        self.checked += 1


def test_the_documented_loop_runs_with_its_import_and_two_sizes_changed_and_trains():
    program = WRITTEN
    for old, new in CHANGES.items():
        assert program.count(old) == 1
        program = program.replace(old, new)
    training = Training()
    names = training.names
    names |= {"train_model": training.train, "max_training_steps": STEPS}
    names |= {"model_sync_interval": SYNC_INTERVAL, "worker_reset_interval": RESET_INTERVAL}
    exec(compile(program, "loop", "exec"), names)
    manager = names["manager"]
    assert len(training.losses) == STEPS
    assert min(training.updates) >= 64 * 0.8
    # The start is version 1, and every sync adds one.
    assert manager.version == 1 + len(range(0, STEPS, SYNC_INTERVAL))
    assert training.checked, "no batch was of a policy that the loop had trained"
    # Normalised advantages have a loss of 0 before an update; below 0, good choices have become likelier.
    assert np.mean(training.losses) < 0.0
