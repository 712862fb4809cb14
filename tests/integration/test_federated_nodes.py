"""A node's handlers against a real coordinator, over real gRPC; the test stands in for the scheduler."""

import asyncio
import random
from contextlib import asynccontextmanager

import numpy as np
import pytest
import safetensors.numpy

from actor.config import LimitsConfig
from actor.federation.federation_client import FederationLink
from actor.federation.local_nodes import LearningTasks, Participants
from actor.handlers.federated import FederatedEvaluate, FederatedFit
from learner.config import FederationsConfig
from learner.federation.connected_nodes import NodesFound
from learner.federation.federations import Federations
from learner.federation.rules.records import FederationState
from learner.federation.servicer import FederationServicer
from learner.federation.task_specs import evaluation_tasks, fit_tasks
from parlmesh.errors import InvalidInput, NotFound
from parlmesh.handlers import Cancelled, Context
from parlmesh.policies import load_policy
from parlmesh.rpc import open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.wire import payload_from_proto


class Fleet:
    """Nodes that answer every request of the federation."""

    def __init__(self, federations, link):
        self.federations = federations
        self.link = link
        self.tasks = LearningTasks({})
        self.handlers = {}

    async def start(self, nodes, **values):
        async def list_nodes(_):
            return NodesFound(tuple(nodes))

        self.federations._list_nodes = list_nodes
        for node in nodes:
            participants = Participants([node], self.link, self.tasks)
            self.handlers[node] = (FederatedFit(participants), FederatedEvaluate(participants))
        base = {"task": "drift", "settings": {"parameters": 50}, "rounds": 2, "evaluation": {"interval_rounds": 0}}
        return await self.federations.start("f", {**base, **values})

    async def asked(self, federation, number):
        core = federation.core
        await wait_until_async(lambda: core.round >= number and core.assignments, 60.0)
        return dict(core.assignments)

    async def fit(self, federation, assignment, **changes):
        parameters = fit_parameters(federation, assignment)
        handler = self.handlers[assignment.node_id][0]
        tail = await asyncio.to_thread(handler.run, {**parameters, **changes}, {}, context())
        return dict((await tail.wait()).parameters)


def fit_parameters(federation, assignment):
    (task,) = fit_tasks("f", federation.config, federation.schema.size, [assignment])
    return payload_from_proto(task.spec.payload)[0]


def context():
    return Context(task_id="t", attempt=1, actor_id="a", slot=0)


@pytest.fixture
async def fleet(tmp_path):
    async with fleet_at(tmp_path / "federations") as found:
        yield found


@asynccontextmanager
async def fleet_at(folder):
    nowhere = open_channel("127.0.0.1:1")
    federations = Federations(folder, nowhere, FederationsConfig())
    async with (
        federations,
        serve([FederationServicer(federations).service]) as address,
        open_channel(address) as channel,
        FederationLink(channel, ["a", "b"], LimitsConfig(), random.Random(0)) as link,
    ):
        yield Fleet(federations, link)
    await nowhere.close()


def model(federation):
    return safetensors.numpy.load(b"".join(federation.model.chunks()))


async def test_nodes_train_from_the_fetched_model_and_their_updates_are_aggregated(fleet):
    federation = await fleet.start(["a", "b"])
    for number in (1, 2):
        for assignment in (await fleet.asked(federation, number)).values():
            answer = await fleet.fit(federation, assignment)
            assert answer == {"sent": 1}
    await wait_until_async(lambda: federation.core.state is FederationState.FINISHED, 60.0)
    # Node 1 adds 0.001 and node 2 0.002, twice.
    np.testing.assert_allclose(model(federation)["weight"], np.full(50, 0.003), atol=1e-7)


async def test_only_the_first_model_is_fetched_and_a_broken_stream_costs_one_fetch(fleet):
    federation = await fleet.start(["a", "b"], rounds=6)
    fetched, fetch = [], fleet.link._fetch

    async def counted(federation_id, version):
        fetched.append(version)
        return await fetch(federation_id, version)

    fleet.link._fetch = counted
    for number in range(1, 7):
        for assignment in (await fleet.asked(federation, number)).values():
            await fleet.fit(federation, assignment)
        if number == 3:
            await fleet.link._watches["f"].close()
    await wait_until_async(lambda: federation.core.state is FederationState.FINISHED, 60.0)
    assert fetched[0] == 1
    assert len(fetched) == 2
    assert fetched[1] in (4, 5)
    np.testing.assert_allclose(model(federation)["weight"], np.full(50, 6 * 0.0015), atol=1e-6)


async def test_the_same_task_again_is_the_same_update(fleet):
    federation = await fleet.start(["a", "b"])
    asked = await fleet.asked(federation, 1)
    assert await fleet.fit(federation, asked["a"]) == await fleet.fit(federation, asked["a"])
    assert len(federation.core.answers) == 1


@pytest.mark.parametrize("encoding", ["int8", "top_k"])
async def test_a_compressed_update_is_sent_again_as_it_was(fleet, encoding):
    federation = await fleet.start(["a", "b"], compression={"encoding": encoding, "ratio": 0.1})
    asked = await fleet.asked(federation, 1)
    assert await fleet.fit(federation, asked["a"]) == await fleet.fit(federation, asked["a"])
    (answer,) = federation.core.answers.values()
    assert answer.norm > 0.0


async def test_a_node_with_local_privacy_sends_noise_and_nothing_longer_before_it(fleet):
    private = {"mode": "local", "clip_norm": 1e-3, "noise_multiplier": 10.0}
    federation = await fleet.start(["a", "b"], privacy=private)
    asked = await fleet.asked(federation, 1)
    await fleet.fit(federation, asked["a"])
    (answer,) = federation.core.answers.values()
    # Noise of deviation 0.01 on 50 numbers; the update itself was clipped to 0.001.
    assert 0.03 < answer.norm < 0.15


async def test_a_refused_node_says_so_and_is_not_tried_again(fleet):
    federation = await fleet.start(["a", "b"])
    asked = await fleet.asked(federation, 1)
    answer = await fleet.fit(federation, asked["a"], members=[{"node_id": "a", "number": 1, "nonce": "00" * 16}])
    assert answer == {"sent": 1, "failed": {"a": "refused: WRONG_NONCE"}}


async def test_models_are_evaluated_on_the_node(fleet):
    federation = await fleet.start(["a"])
    (task,) = evaluation_tasks("f", federation.config, 1, {"a": 1})
    parameters, _ = payload_from_proto(task.spec.payload)
    result = await asyncio.to_thread(fleet.handlers["a"][1].run, parameters, {}, context())
    assert result.parameters == {"judged": {"a": {"samples": 1, "metrics": {"mean": 0.0}}}}


async def test_impossible_tasks_fail_with_a_reason(fleet):
    federation = await fleet.start(["a"])
    asked = await fleet.asked(federation, 1)
    with pytest.raises(InvalidInput, match="not installed here"):
        await fleet.fit(federation, asked["a"], task="chess")
    with pytest.raises(InvalidInput, match="base_version"):
        await fleet.fit(federation, asked["a"], base_version=0)
    with pytest.raises(NotFound, match="version 9 is not kept"):
        await fleet.fit(federation, asked["a"], base_version=9)


async def test_a_cancelled_fit_stops_while_it_waits(fleet):
    federation = await fleet.start(["a"])
    asked = await fleet.asked(federation, 1)
    parameters = fit_parameters(federation, asked["a"])
    cancelled = context()
    cancelled.cancelled = True

    async def never(*_):
        await asyncio.sleep(60.0)

    fleet.link.fetch = never
    with pytest.raises(Cancelled):
        await asyncio.to_thread(fleet.handlers["a"][0].run, parameters, {}, cancelled)


async def test_the_policy_of_a_federation_is_published_as_a_runs_is(fleet):
    settings = {"num_envs": 2, "trajectory_steps": 4, "updates": 1, "hidden": [4]}
    federation = await fleet.start(["a"], task="ppo", settings=settings, rounds=1)

    def registry():
        return fleet.federations.policies("f", lambda run_id: None)

    assert registry().version == 1
    asked = await fleet.asked(federation, 1)
    await fleet.fit(federation, asked["a"])
    await wait_until_async(lambda: registry().version == 2, 60.0)
    published = registry().get("f").blob
    assert published.digest.hex() == federation.core.digest
    assert load_policy(published.data).greedy(np.zeros((1, 4), np.float32)).action.shape == (1,)
    assert fleet.federations.policies("other", lambda run_id: run_id) == "other"
