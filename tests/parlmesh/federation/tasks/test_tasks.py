from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.federation import aggregators
from parlmesh.federation.aggregators import joint_update
from parlmesh.federation.learning_task import BUILT_IN, LearningTask, Part, make_task
from parlmesh.federation.model_file import model_header, read_model
from parlmesh.federation.schema import ModelSchema
from parlmesh.federation.tasks.classifier import AdamW, Classifier
from parlmesh.federation.tasks.ppo import LocalPpo
from parlmesh.federation.tasks.torch_module import TorchTask
from parlmesh.federation.tasks.varied_cart_pole import NAME
from parlmesh.federation.update_blocks import MemoryUpdates
from parlmesh.policies import load_policy

SMALL_PPO = {"num_envs": 4, "trajectory_steps": 8, "updates": 1, "hidden": [8], "evaluation_episodes": 2}


def part(number, round_=1, seed=0):
    return Part(f"node-{number}", number, round_, seed)


def rounds_of(task, nodes, rounds, rule=None, mischief=lambda number, vector: vector, seed=0):
    """A federation in one process: the arithmetic alone."""
    tensors = dict(task.first(seed).tensors)
    schema = ModelSchema.of(tensors)
    for number in range(1, rounds + 1):
        fitted = [task.fit(tensors, part(node, number, seed)) for node in range(1, nodes + 1)]
        vectors = [schema.difference(each.tensors, tensors) for each in fitted]
        updates = MemoryUpdates({f"{k:03d}": mischief(k + 1, vector) for k, vector in enumerate(vectors)})
        weights = [each.samples for each in fitted]
        combination = rule(updates) if rule else aggregators.mean(weights)
        moved = (schema.flatten(tensors) + joint_update(updates, combination)).astype(np.float32)
        start = 0
        for spec in schema.joined:
            tensors[spec.name] = moved[start : start + spec.size].reshape(spec.shape)
            start += spec.size
    return tensors


def accuracy(task, tensors, nodes):
    judged = [task.evaluate(tensors, part(node)) for node in range(1, nodes + 1)]
    return sum(each.samples * each.metrics["accuracy"] for each in judged) / sum(each.samples for each in judged)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_every_built_in_task_trains_the_same_way_twice(name):
    task = make_task(name, SMALL_PPO if name == "ppo" else {}, {})
    assert isinstance(task, LearningTask)
    first = task.first(3)
    schema = ModelSchema.of(first.tensors, first.rules)
    once, again = task.fit(first.tensors, part(2)), task.fit(first.tensors, part(2))
    assert once.samples == again.samples > 0
    difference = schema.difference(once.tensors, first.tensors)
    assert np.array_equal(difference, schema.difference(again.tensors, first.tensors))
    assert np.abs(difference).max() > 0.0
    other = task.fit(first.tensors, part(3))
    assert not np.array_equal(difference, schema.difference(other.tensors, first.tensors))
    assert task.evaluate(once.tensors, part(2)).samples > 0


def test_one_full_batch_step_on_every_node_is_a_step_of_gradient_descent_on_all():
    settings = {"batch": 0, "epochs": 1, "hidden": [], "learning_rate": 0.5}
    federated = make_task("digits", {**settings, "nodes": 7, "partition": "dirichlet"}, {})
    central = make_task("digits", {**settings, "nodes": 1, "partition": "iid"}, {})
    ours, theirs = rounds_of(federated, 7, 5), rounds_of(central, 1, 5)
    for name, tensor in ours.items():
        np.testing.assert_allclose(tensor, theirs[name], rtol=1e-4, atol=1e-6)


def test_fedprox_without_a_pull_is_fedavg_and_with_a_strong_one_stays():
    tensors = make_task("digits", {}, {}).first(0).tensors

    def moved(**settings):
        task = make_task("digits", settings, {})
        return ModelSchema.of(tensors).difference(task.fit(tensors, part(1)).tensors, tensors)

    assert np.array_equal(moved(), moved(proximal=0.0))
    distances = [float(np.linalg.norm(moved(proximal=mu, learning_rate=0.01))) for mu in (0.0, 5.0, 20.0, 90.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.5 * distances[0]


def test_the_file_of_a_federated_policy_is_a_policy():
    task = make_task("ppo", SMALL_PPO, {})
    first = task.first(1)
    schema = ModelSchema.of(first.tensors, first.rules)
    data = model_header(schema, first.metadata) + schema.flatten(first.tensors).tobytes()
    read = read_model(data)
    assert read.schema.digest == schema.digest
    assert all(np.array_equal(read.tensors[name], value) for name, value in first.tensors.items())
    assert load_policy(data).greedy(np.zeros((1, 4), np.float32)).action.shape == (1,)
    for damaged in (data[:100], b"\xff" * 8 + data[8:], data[:-1], b""):
        with pytest.raises(InvalidInput):
            read_model(damaged)


def test_nodes_of_different_physics_differ():
    kwargs = [{"length": 0.3}, {"length": 1.2}]
    task = make_task("ppo", {**SMALL_PPO, "environment": {"id": NAME}, "node_kwargs": kwargs}, {})
    assert isinstance(task, LocalPpo)
    tensors = task.first(0).tensors
    assert task._environment(1)["kwargs"] == task._environment(3)["kwargs"] == {"length": 0.3}
    one, other = (task.fit(tensors, Part("n", number, 1, 0)).tensors for number in (1, 2))
    assert not np.array_equal(one["policy.0.weight"], other["policy.0.weight"])


def test_a_torch_module_of_ones_own_is_a_task():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.norm, self.outer = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

        def forward(self, inputs):
            return self.outer(torch.relu(self.norm(self.inner(inputs))))

    def data(piece):
        inputs = torch.from_numpy(np.random.default_rng(piece.number).standard_normal((64, 4)).astype(np.float32))
        return inputs, (inputs.sum(dim=1) > 0).long()

    task = TorchTask(Net, data, data, epochs=20, learning_rate=0.2)
    first = task.first(0)
    schema = ModelSchema.of(first.tensors, first.rules)
    rules = {tensor.name: tensor.rule for tensor in schema.tensors}
    assert (rules["norm.running_mean"], rules["norm.num_batches_tracked"], rules["norm.weight"]) == (
        "local",
        "keep",
        "mean",
    )
    before = task.evaluate(first.tensors, part(1))
    after = task.evaluate(task.fit(first.tensors, part(1)).tensors, part(1))
    assert after.metrics["accuracy"] > max(0.9, before.metrics["accuracy"])
    pulled = TorchTask(Net, data, data, epochs=20, learning_rate=0.2, proximal=4.0).fit(first.tensors, part(1))
    free = task.fit(first.tensors, part(1))
    lengths = [float(np.linalg.norm(schema.difference(each.tensors, first.tensors))) for each in (pulled, free)]
    assert lengths[0] < lengths[1]


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("digits", {"nodes": 0}, "nodes"),
        ("digits", {"colour": 1}, "colour"),
        ("chess", {}, "not installed here; there are digits"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(name, settings, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        make_task(name, settings, {})


def test_sources_that_cannot_be_imported_are_refused():
    for source in ("nowhere:Task", "parlmesh.federation:nothing", "parlmesh", ":"):
        with pytest.raises(ConfigError, match="learning task 'mine'"):
            make_task("mine", {}, {"mine": source})


def test_federated_digits_of_ten_uneven_nodes_come_within_two_points_of_one():
    # Fifty rounds with the defaults.
    federated = make_task("digits", {"nodes": 10, "partition": "dirichlet", "alpha": 0.3}, {})
    central = make_task("digits", {"nodes": 1}, {})
    ours = accuracy(federated, rounds_of(federated, 10, 50), 10)
    theirs = accuracy(central, rounds_of(central, 1, 50), 1)
    assert theirs > 0.95
    assert ours >= theirs - 0.02


def test_steps_are_made_whatever_the_number_of_samples_and_adamw_is_torchs():
    rng = np.random.default_rng(0)
    ours = rng.standard_normal(50).astype(np.float32)
    theirs = nn.Parameter(torch.from_numpy(ours.copy()))
    adamw, torchs = AdamW(1e-2, 0.1), torch.optim.AdamW([theirs], 1e-2, weight_decay=0.1)
    for _ in range(20):
        gradient = rng.standard_normal(50).astype(np.float32)
        adamw.step(ours, gradient)
        theirs.grad = torch.from_numpy(gradient.copy())
        torchs.step()
    assert np.allclose(ours, theirs.detach().numpy(), atol=1e-5)


def test_a_slow_node_stops_in_time_with_at_least_one_step():
    ticks = iter(range(1_000))

    def trained(**options):
        model = Classifier((4, 2))
        model.first(np.random.default_rng(0))
        inputs, labels = np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])
        settings: dict[str, Any] = {"epochs": 1, "batch": 2, "learning_rate": 0.1, "proximal": 0.0}
        model.train(inputs, labels, rng=np.random.default_rng(0), check=lambda: None, **settings, **options)
        return model.tensors()["0.weight"]

    one, three = trained(steps=1), trained(steps=3)
    assert not np.array_equal(one, three)
    # The clock advances by a second with each reading: one at the start, one after every step.
    assert np.array_equal(trained(steps=500, seconds=0.5, clock=lambda: next(ticks)), one)
    assert np.array_equal(trained(steps=500, seconds=3.0, clock=lambda: next(ticks)), three)
