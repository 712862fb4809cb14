import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actor.config import LimitsConfig
from actor.handlers.evaluate import Evaluate
from actor.learner.policy_cache import PolicyCache
from actor.learner.policy_client import PolicyLink
from actor.metrics import ActorMetrics
from parlmesh.distribution.policy_download import policy_stub
from parlmesh.environments import Environments
from parlmesh.errors import InvalidInput, NotFound
from parlmesh.handlers import Cancelled, Context
from parlmesh.policies import load_policy
from parlmesh.rollouts import evaluate
from parlmesh.rpc import open_channel
from parlmesh.testing import serve
from parlmesh.testing.fleet import FakeLearner, random_policy

_ENVIRONMENT = {"id": "CartPole-v1"}
_WANTED = {"run_id": "run-1", "environment": _ENVIRONMENT, "episodes": 5, "seed": 11, "version": 1}


@asynccontextmanager
async def _handler() -> AsyncIterator[Evaluate]:
    """A learner that has published versions 1 and 2."""
    learner, metrics, rng, limits = FakeLearner(), ActorMetrics(CollectorRegistry()), random.Random(0), LimitsConfig()
    async with serve(learner.services) as address, open_channel(address) as channel:
        policies = PolicyCache(policy_stub(channel), load_policy, limits=limits, metrics=metrics, rng=rng)
        async with policies:
            for version in (1, 2):
                await learner.publish("run-1", version, random_policy(version))
            yield Evaluate(PolicyLink(policies, policy_seconds=5.0))


def _context() -> Context:
    return Context(task_id="task-1", attempt=1, actor_id="node-1", slot=0)


async def _run(handler: Evaluate, **parameters: Any) -> dict[str, Any]:
    result = await asyncio.to_thread(handler.run, _WANTED | parameters, {}, _context())
    return dict(result.parameters)


@pytest.mark.parametrize("version", [1, 2])
async def test_exactly_the_version_asked_for_plays_greedily(version: int) -> None:
    returns = evaluate(load_policy(random_policy(version)), _ENVIRONMENT, 5, 11)
    async with _handler() as handler:
        assert await _run(handler, version=version) == {
            "version": version,
            "episodes": 5,
            "mean_return": returns.mean(),
            "min_return": returns.min(),
            "max_return": returns.max(),
            "returns": list(returns),
        }


async def test_play_is_sampled_when_it_is_asked_for() -> None:
    returns = evaluate(load_policy(random_policy(1)), _ENVIRONMENT, 5, 11, sampled=True)
    assert list(returns) != list(evaluate(load_policy(random_policy(1)), _ENVIRONMENT, 5, 11))
    async with _handler() as handler:
        assert (await _run(handler, sampled=True))["returns"] == list(returns)


async def test_a_version_that_is_not_kept_is_not_found() -> None:
    async with _handler() as handler:
        with pytest.raises(NotFound, match="no version 7"):
            await _run(handler, version=7)


async def test_a_version_must_be_named() -> None:
    async with _handler() as handler:
        with pytest.raises(InvalidInput, match="'version' of evaluate is 0"):
            await _run(handler, version=0)


async def test_a_cancelled_evaluation_does_not_start_to_play() -> None:
    async with _handler() as handler:
        context = _context()
        context.cancelled = True
        with pytest.raises(Cancelled):
            await asyncio.to_thread(handler.run, _WANTED, {}, context)


async def test_an_evaluation_that_is_cancelled_ends_at_its_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    context, steps = _context(), 0
    real = Environments.step

    def step(envs: Environments, actions: Any) -> Any:
        nonlocal steps
        steps += 1
        context.cancelled = steps == 3
        return real(envs, actions)

    monkeypatch.setattr(Environments, "step", step)
    async with _handler() as handler:
        with pytest.raises(Cancelled):
            await asyncio.to_thread(handler.run, _WANTED, {}, context)
    assert steps == 3
