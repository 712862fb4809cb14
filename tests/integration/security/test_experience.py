"""Experience of proven nodes: nobody speaks for another, or sends what it was not asked for."""

import asyncio
import contextlib

import numpy as np
import pytest

from learner.build import build_runs, build_services
from learner.config import LearnerConfig, TrainingConfig
from learner.sources.actor_listing import RolloutActor
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.rpc import error_from_status, open_channel
from parlmesh.security import Role
from parlmesh.testing import serve
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.wire import trajectory_to_proto

TRAINING = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "batch_trajectories": 8}
WAIT = 60.0
HONEST, OTHER = "actor-1", "actor-t"


class Experience:
    def __init__(self, runs, stubs):
        self.runs = runs
        self.live = runs.get("").live
        self._stubs = stubs
        policy = load_policy(self.live.run.registry.get("").blob.data)
        self.fragment = Collector({"id": "CartPole-v1"}, 4, collector_seed(0, "a", 1)).collect(policy, 8)

    async def asked(self):
        await self.live._fleet.request(1, 1)
        return self.live._fleet._dispatcher._lanes["rollout"].unsent[-1].task_id

    async def upload(self, node, sequence=1, fragment=None, **changes):
        """The reason of a refusal; empty when accepted."""
        origin = {"run_id": "run", "actor_id": "a", "incarnation": 5, "policy_version": 1}
        message = trajectory_to_proto(fragment or self.fragment, sequence=sequence, **{**origin, **changes})

        async def requests():
            yield pb.UploadTrajectoriesRequest(trajectory=message)

        call = self._stubs[node].UploadTrajectories(requests(), timeout=WAIT)
        (receipt,) = [each async for each in call]
        return error_from_status(receipt.status).reason if receipt.status.code else ""


@pytest.fixture
async def experience(tmp_path, material):
    config = LearnerConfig(run_dir=tmp_path, training=TrainingConfig.model_validate(TRAINING))
    scheduler, stopping = open_channel("127.0.0.1:1"), asyncio.Event()
    runs = build_runs(config, scheduler)
    runs.open()
    live = runs.get("").live
    assert live is not None
    live.run.publish()
    async with contextlib.AsyncExitStack() as stack:
        services = build_services(config, runs, stopping)
        address = await stack.enter_async_context(serve(services, material.server()))
        stubs = {}
        for name, security in ((HONEST, material.node(Role.ACTOR)), (OTHER, material.holder(Role.ACTOR))):
            channel = await stack.enter_async_context(open_channel(address, security))
            stubs[name] = ExperienceServiceStub(channel)
        yield Experience(runs, stubs)
        stopping.set()
    await scheduler.close()
    live.close()
    runs.close()


async def test_an_actor_delivers_what_it_was_asked_for_once(experience):
    task = await experience.asked()
    assert await experience.upload(HONEST, task_id=task) == ""
    assert await experience.upload(HONEST, task_id=task) == "DUPLICATE_TRAJECTORY", "as after a broken stream"
    assert await experience.upload(HONEST, 2, task_id=task) == "UNASKED"
    assert await experience.upload(HONEST, 3, task_id="learner-run-0-1") == "UNASKED"
    old = "learner-run-01234567-1-89abcdef"
    assert await experience.upload(HONEST, 5, task_id=old) == "OLD_TASK", "no fault of an honest actor's"
    assert await experience.upload(HONEST, 4) == "UNASKED"
    assert experience.runs.strikes.counts == {HONEST: {"UNASKED": 3}}


async def test_nobody_shuts_another_actor_out_by_a_higher_incarnation(experience):
    first, second = await experience.asked(), await experience.asked()
    assert await experience.upload(OTHER, task_id=first, incarnation=2**63 - 1) == ""
    assert await experience.upload(OTHER, 2, task_id=second, incarnation=2**63) == "TRAJECTORY_ORIGIN"
    assert await experience.upload(HONEST, task_id=second) == ""


async def test_nobody_speaks_for_an_actor_that_the_scheduler_knows_on_another_node(experience):
    actors, task = experience.live._fleet._actors, await experience.asked()
    actors._nodes = {"a": HONEST}
    actors.members = [RolloutActor("a", HONEST, 1)]
    assert await experience.upload(OTHER, task_id=task) == "WRONG_NODE"
    assert await experience.upload(HONEST, task_id=task) == ""
    assert experience.runs.strikes.counts == {OTHER: {"WRONG_NODE": 1}}


async def test_impossible_experience_is_refused_and_counts_against_its_node(experience):
    for sequence, (name, value) in enumerate([("reward", 3e38), ("observation", np.inf), ("log_prob", -3e4)], start=1):
        columns = dict(experience.fragment.columns)
        columns[name] = np.full_like(columns[name], value)
        fragment = type(experience.fragment)(columns, [])
        task = await experience.asked()
        assert await experience.upload(OTHER, sequence, fragment, task_id=task) in ("OUT_OF_BOUNDS", "NOT_FINITE")
    assert experience.runs.strikes.counts == {OTHER: {"OUT_OF_BOUNDS": 2, "NOT_FINITE": 1}}
    queue = experience.live.run.queue
    assert (queue.received, sum(queue.dropped.values()), len(queue)) == (3, 3, 0)
