import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.handlers.rollout import Rollout
from actor.learner.policy_cache import PolicyCache
from actor.learner.policy_client import PolicyLink
from actor.learner.trajectory_uploads import Uploads, upload_stream
from actor.metrics import ActorMetrics
from actor.session.actor_identity import ActorIdentity
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.environments import Environments
from parlmesh.errors import DeadlineExceeded, FailedPrecondition, InvalidInput, ResourceExhausted
from parlmesh.handlers import Cancelled, Context, HandlerError, Result, Tail
from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.rpc import open_channel
from parlmesh.testing import serve
from parlmesh.testing.fleet import FakeLearner, random_policy
from parlmesh.v1.experience_service_pb2 import Trajectory
from parlmesh.wire import trajectory_from_proto

_RUN, _ACTOR, _INCARNATION = "run-1", "node-1", 7
_ENVIRONMENT = {"id": "CartPole-v1"}
_WANTED = {"run_id": _RUN, "environment": _ENVIRONMENT, "num_envs": 4, "trajectory_steps": 16, "seed": 3}


@dataclass
class Rolling:
    learner: FakeLearner
    rollout: Rollout
    metrics: ActorMetrics

    def context(self, slot: int = 0) -> Context:
        return Context(task_id="task-1", attempt=1, actor_id=_ACTOR, slot=slot)

    async def run(self, context: Context | None = None, **parameters: Any) -> dict[str, Any]:
        tail = await asyncio.to_thread(self.rollout.run, _WANTED | parameters, {}, context or self.context())
        found = await tail.wait()
        assert isinstance(found, Result)
        return dict(found.parameters)

    @property
    def versions(self) -> list[int]:
        return [trajectory.policy_version for trajectory in self.learner.trajectories]


@asynccontextmanager
async def _rolling(*, version: int = 1, from_clock: bool = True, **limits: Any) -> AsyncIterator[Rolling]:
    learner, metrics, rng = FakeLearner(), ActorMetrics(CollectorRegistry()), random.Random(0)
    options = LimitsConfig(**{"reconnect_seconds": 0.02} | limits)
    async with serve(learner.services) as address, open_channel(address) as channel:
        policies = PolicyCache(policy_stub(channel), load_policy, limits=options, metrics=metrics, rng=rng)
        identity = ActorIdentity("node", _ACTOR, _INCARNATION, from_clock=from_clock)
        uploads = Uploads(
            upload_stream(channel), limits=options, metrics=metrics, rng=rng, on_outlived=identity.outlive
        )
        async with policies, uploads:
            link = PolicyLink(policies, policy_seconds=options.policy_seconds)
            rollout = Rollout(link, uploads, actor_id=_ACTOR, incarnation=lambda: identity.at_learner, metrics=metrics)
            await learner.publish(_RUN, version, random_policy(version))
            yield Rolling(learner, rollout, metrics)
            rollout.reset()


def _expected(fragments: int, *, slot: int = 0) -> list[Any]:
    """The same steps, taken here."""
    collector = Collector(_ENVIRONMENT, 4, collector_seed(3, _ACTOR, _INCARNATION, slot))
    policy = load_policy(random_policy(1))
    found = [collector.collect(policy, 16) for _ in range(fragments)]
    collector.close()
    return found


def _same(message: Trajectory, fragment: Any) -> bool:
    columns = trajectory_from_proto(message).fragment.columns
    return all(np.array_equal(columns[name], column) for name, column in fragment.columns.items())


async def test_a_rollout_uploads_what_a_collector_with_its_seed_collects() -> None:
    async with _rolling() as rolling:
        result = await rolling.run(fragments=3)
        expected = _expected(3)
        assert all(map(_same, rolling.learner.trajectories, expected))
        assert result == {
            "steps": sum(fragment.valid_steps for fragment in expected),
            "episodes": sum(len(fragment.episodes) for fragment in expected),
            "policy_version": 1,
            "accepted": 3,
            "refused": {},
        }
        assert rolling.metrics.environment_steps._value.get() == result["steps"]


async def test_a_trajectory_says_where_it_comes_from() -> None:
    async with _rolling(version=4) as rolling:
        await rolling.run(fragments=2)
        found = [
            (each.run_id, each.actor_id, each.incarnation, each.sequence, each.policy_version, each.task_id)
            for each in rolling.learner.trajectories
        ]
        assert found == [(_RUN, _ACTOR, _INCARNATION, sequence, 4, "task-1") for sequence in (1, 2)]


async def test_episodes_go_on_from_task_to_task() -> None:
    async with _rolling() as rolling:
        for _ in range(3):
            await rolling.run()
        assert all(map(_same, rolling.learner.trajectories, _expected(3)))


async def test_each_slot_has_environments_of_its_own() -> None:
    async with _rolling() as rolling:
        await rolling.run(rolling.context(slot=1))
        assert _same(rolling.learner.trajectories[0], _expected(1, slot=1)[0])
        await rolling.run(rolling.context(slot=0))
        assert _same(rolling.learner.trajectories[1], _expected(1, slot=0)[0])


async def test_environments_made_anew_after_a_reset_do_not_repeat_games() -> None:
    async with _rolling() as rolling:
        await rolling.run()
        rolling.rollout.reset()
        await rolling.run()
        first, second = rolling.learner.trajectories
        assert _same(first, _expected(1)[0])
        assert not _same(second, _expected(1)[0])
        assert not _same(second, _expected(2)[1])


async def test_other_environments_replace_those_of_the_slot() -> None:
    async with _rolling() as rolling:
        await rolling.run()
        await rolling.run(num_envs=2)
        assert len(rolling.rollout._kept) == 1
        assert trajectory_from_proto(rolling.learner.trajectories[1]).fragment.columns["reward"].shape == (16, 2)


async def test_a_slot_whose_thread_was_left_behind_reports_no_negative_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    numbers, real = itertools.count(), Collector.collect

    def collect(self: Collector, *given: Any) -> Any:
        number = next(numbers)
        begun[number].set()
        assert go_on[number].wait(60)
        return real(self, *given)

    monkeypatch.setattr(Collector, "collect", collect)
    async with _rolling() as rolling:
        left_behind = asyncio.create_task(rolling.run())
        assert await asyncio.to_thread(begun[0].wait, 20)
        after = asyncio.create_task(rolling.run())
        assert await asyncio.to_thread(begun[1].wait, 20)
        go_on[0].set()
        await left_behind
        assert rolling.rollout._ended
        go_on[1].set()
        await after
        assert [trajectory.waited_seconds for trajectory in rolling.learner.trajectories] == [0.0, 0.0]


async def test_a_rollout_waits_for_the_policy_version_it_was_asked_for() -> None:
    async with _rolling() as rolling:
        await rolling.run()
        task = asyncio.create_task(rolling.run(min_policy_version=2))
        await rolling.learner.publish(_RUN, 2, random_policy(2))
        assert (await task)["policy_version"] == 2
        assert rolling.versions == [1, 2]


async def test_a_rollout_acts_with_the_newest_version_there_is() -> None:
    async with _rolling(version=5) as rolling:
        assert (await rolling.run(min_policy_version=2))["policy_version"] == 5


async def test_a_policy_that_does_not_come_fails_the_task() -> None:
    async with _rolling(policy_seconds=0.1) as rolling:
        with pytest.raises(DeadlineExceeded, match="policy version 2"):
            await rolling.run(min_policy_version=2)


async def test_experience_that_is_too_old_is_counted_and_no_fault_of_the_task() -> None:
    async with _rolling() as rolling:
        rolling.learner.refusal = lambda trajectory: (
            FailedPrecondition("old", reason="POLICY_LAG") if trajectory.sequence == 1 else None
        )
        result = await rolling.run(fragments=2)
        assert (result["accepted"], result["refused"]) == (1, {"POLICY_LAG": 1})


@pytest.mark.parametrize("from_clock", [True, False])
async def test_an_actor_whose_clock_went_back_is_refused_once_unless_its_number_was_given(from_clock: bool) -> None:
    known = _INCARNATION + 1_000

    def refuse(trajectory: Trajectory) -> FailedPrecondition | None:
        if trajectory.incarnation > known:
            return None
        return FailedPrecondition("replaced", reason="OLD_INCARNATION", newest_incarnation=known)

    async with _rolling(from_clock=from_clock) as rolling:
        rolling.learner.refusal = refuse
        results = [await rolling.run() for _ in range(3)]
        once = {"OLD_INCARNATION": 1}
        assert [result["refused"] for result in results] == ([once, {}, {}] if from_clock else [once] * 3)


async def test_environments_that_do_not_close_cost_neither_a_task_nor_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _rolling() as rolling:
        await rolling.run(rolling.context(slot=0))
        await rolling.run(rolling.context(slot=1))
        closed: list[Collector] = []

        def close(collector: Collector) -> None:
            closed.append(collector)
            raise OSError("the simulator has gone")

        with monkeypatch.context() as patched:
            patched.setattr(Collector, "close", close)
            rolling.rollout.reset()
            assert len(closed) == 2
            assert (await rolling.run())["accepted"] == 1
            assert (await rolling.run(num_envs=2))["accepted"] == 1
            assert len(closed) == 3
        for collector in closed:
            collector.close()


async def test_environments_that_cannot_be_reset_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Environments] = []

    def fail(envs: Environments, seed: int) -> None:
        made.append(envs)
        raise RuntimeError("no world to begin in")

    closed: list[Environments] = []
    monkeypatch.setattr(Environments, "reset", fail)
    monkeypatch.setattr(Environments, "close", lambda envs: closed.append(envs))
    with pytest.raises(RuntimeError, match="no world to begin in"):
        Collector(_ENVIRONMENT, 2, np.random.SeedSequence(0))
    assert closed == made != []


@pytest.mark.parametrize(
    ("error", "reason", "retryable"),
    [
        (InvalidInput("column reward must be float32", reason="DTYPE"), "DTYPE", False),
        (ResourceExhausted("queue full", reason="QUEUE_FULL"), "QUEUE_FULL", True),
    ],
)
async def test_any_other_refusal_fails_the_task_with_the_learners_reason(
    error: Exception, reason: str, retryable: bool
) -> None:
    async with _rolling() as rolling:
        rolling.learner.refusal = lambda trajectory: error  # type: ignore[assignment,return-value]
        with pytest.raises(HandlerError, match="the learner refused a trajectory") as caught:
            await rolling.run()
        assert (caught.value.reason, caught.value.retryable) == (reason, retryable)


async def test_a_task_ends_only_when_every_receipt_is_in() -> None:
    async with _rolling() as rolling:
        rolling.learner.silent = True
        task = asyncio.create_task(rolling.run(fragments=2))
        await rolling.learner.until(lambda: len(rolling.learner.trajectories) == 2)
        assert not task.done()
        rolling.learner.silent = False
        rolling.learner.break_streams()
        assert (await task)["accepted"] == 2


async def test_no_more_than_two_uploads_of_a_slot_are_under_way_whatever_the_tasks() -> None:
    async with _rolling() as rolling:
        rolling.learner.silent = True

        async def run() -> Tail:
            return await asyncio.to_thread(rolling.rollout.run, _WANTED, {}, rolling.context())

        tails = [await run() for _ in range(2)]
        await rolling.learner.until(lambda: len(rolling.learner.trajectories) == 2)
        third = asyncio.create_task(run())
        done, _ = await asyncio.wait({third}, timeout=0.2)
        assert not done
        assert len(rolling.learner.trajectories) == 2
        rolling.learner.silent = False
        rolling.learner.break_streams()
        for tail in (*tails, await third):
            assert (await tail.wait()).parameters["accepted"] == 1  # type: ignore[union-attr]


async def test_a_cancelled_rollout_stops_at_the_next_fragment() -> None:
    async with _rolling() as rolling:
        context = rolling.context()

        def refuse(trajectory: Trajectory) -> None:
            context.cancelled = trajectory.sequence >= 3

        rolling.learner.refusal = refuse
        with pytest.raises(Cancelled):
            await rolling.run(context, fragments=1_000_000)
        assert rolling.rollout._kept == {}


async def test_a_cancelled_rollout_does_not_go_on_waiting_for_a_policy() -> None:
    async with _rolling() as rolling:
        context = rolling.context()
        await rolling.run()
        task = asyncio.create_task(rolling.run(context, min_policy_version=9))
        context.cancelled = True
        with pytest.raises(Cancelled):
            async with asyncio.timeout(60.0):
                await task


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"num_envs": 0}, "'num_envs' of rollout is 0: Input should be greater than or equal to 1"),
        ({"trajectory_steps": 1.5}, "'trajectory_steps' of rollout is 1.5"),
        ({"run_id": ""}, "'run_id' of rollout is ''"),
        ({"environment": {"id": "NoSuch-v0"}}, "environment 'NoSuch-v0' cannot be made"),
    ],
)
async def test_bad_parameters_are_named(parameters: dict[str, Any], text: str) -> None:
    async with _rolling() as rolling:
        with pytest.raises(InvalidInput) as caught:
            await rolling.run(**parameters)
        assert text in caught.value.message
