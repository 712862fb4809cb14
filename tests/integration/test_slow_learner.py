"""A learner that trains far slower than its actors collect: everything between them stays bounded and accounted for."""

import asyncio
import random
import threading
from functools import partial

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.learner.trajectory_uploads import Uploads, upload_stream
from actor.metrics import ActorMetrics
from learner.build import build_run, build_runs, build_services
from learner.config import ExperienceConfig, LearnerConfig, TrainingConfig
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.rpc import open_channel
from parlmesh.testing import serve, wait_until_async
from parlmesh.types import Trajectory
from parlmesh.wire import trajectory_to_request

TRAINING = {"num_envs": 4, "trajectory_steps": 8, "hidden": [8], "max_policy_lag": 3, "goal_return": None}
WAIT = 60.0


class Games:
    """Any number of trajectories of one actor."""

    def __init__(self, run):
        self._run = run
        self._collector = Collector({"id": "CartPole-v1"}, 4, collector_seed(0, "a", 1))
        self._sequence = 0

    def next(self):
        blob = self._run.registry.get("").blob
        fragment = self._collector.collect(load_policy(blob.data), 8)
        self._sequence += 1
        return Trajectory("run", "a", 1, self._sequence, blob.version, fragment, collect_seconds=0.1)


def balance(queue):
    return queue.trained + queue.training + len(queue) + sum(queue.dropped.values())


async def test_a_learner_that_does_not_keep_up_refuses_what_does_not_fit_and_counts_it(tmp_path):
    config = LearnerConfig(
        run_dir=tmp_path,
        training=TrainingConfig.model_validate(TRAINING),
        experience=ExperienceConfig(max_queued_trajectories=4),
    )
    scheduler, stopping = open_channel("127.0.0.1:1"), asyncio.Event()
    runs = build_runs(config, scheduler)
    runs.open()
    live = runs.get("").live
    assert live is not None
    live.run.publish()
    queue, games = live.run.queue, Games(live.run)
    metrics, limits = ActorMetrics(CollectorRegistry()), LimitsConfig(uploads_in_flight=3)
    async with serve(build_services(config, runs, stopping)) as address, open_channel(address) as channel:
        uploads = Uploads(upload_stream(channel), limits=limits, metrics=metrics, rng=random.Random(0))
        async with uploads, asyncio.timeout(WAIT):
            receipts = await asyncio.gather(*(uploads.upload(trajectory_to_request(games.next())) for _ in range(20)))
            assert sum(receipt.error is None for receipt in receipts) == len(queue) == 4
            assert {receipt.error.reason for receipt in receipts if receipt.error} == {"QUEUE_FULL"}
            assert queue.dropped == {"QUEUE_FULL": 16}
            assert queue.received == balance(queue) == 20
            taken = queue.take(2, 1)
            assert taken is not None
            queue.finish(len(taken), applied=True)
            receipts = await asyncio.gather(*(uploads.upload(trajectory_to_request(games.next())) for _ in range(5)))
            assert sum(receipt.error is None for receipt in receipts) == 2
            assert (len(queue), queue.trained, queue.received, balance(queue)) == (4, 2, 25, 25)
        stopping.set()
    live.close()
    await scheduler.close()


class Fleet:
    """A source whose actors deliver at once, and which records the most that was ever outstanding."""

    def __init__(self, run):
        self._run = run
        self._games = Games(run)
        self.asked = self.most = 0

    outstanding = 0

    async def request(self, count, min_version):
        for _ in range(count):
            self.asked += 1
            self._run.receive(self._games.next())
            queue = self._run.queue
            self.most = max(self.most, len(queue) + queue.training)
            assert queue.received == balance(queue)

    async def evaluate(self, version, seed, seconds):
        raise AssertionError("nobody asked")

    async def match(self, version, opponent, seed, seconds):
        raise AssertionError("nobody asked")

    def tensors(self, *, untrained):
        return {}


@pytest.mark.parametrize("lag", [0, 3])
async def test_actors_are_asked_for_no_more_than_the_lag_limit_allows_however_slow_the_learner_is(
    tmp_path, monkeypatch, lag
):
    changes = {
        "max_policy_lag": lag,
        "batch_trajectories": 2,
        "step_budget": 1_000,
        "evaluation_interval_steps": 10_000,
    }
    parts = build_run(LearnerConfig(run_dir=tmp_path, training=TrainingConfig.model_validate({**TRAINING, **changes})))
    run, trainer = parts.run, parts.run._trainer
    fleet, update, turn = Fleet(run), trainer.update, threading.Semaphore(0)

    def slow(fragments, progress):
        turn.acquire(timeout=WAIT)
        return update(fragments, progress)

    def made(updates):
        return run.progress.updates == updates

    monkeypatch.setattr(trainer, "update", slow)
    async with asyncio.timeout(WAIT):
        training_task = asyncio.create_task(run.train(fleet))
        for updates in range(5):
            # The actors can flood the learner for the whole time of an update.
            await wait_until_async(lambda: run.queue.training == 2, WAIT)
            await wait_until_async(lambda: len(run.queue) + 2 == fleet.most, WAIT)
            assert fleet.most == 2 * (lag + 1)
            assert run.progress.updates == updates
            turn.release()
            await wait_until_async(partial(made, updates + 1), WAIT)
        run.stop("enough")
        turn.release(2)
        await training_task
    parts.recorder.close()
    assert run.queue.received == balance(run.queue)
    assert run.progress.max_policy_lag_seen <= lag
    assert not run.queue.dropped
