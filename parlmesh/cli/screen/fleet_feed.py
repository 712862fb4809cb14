"""Keeps a `FleetView` current over gRPC: one stream from the learner, two short calls to the scheduler."""

import asyncio
import random
from functools import partial
from typing import Never

import grpc
import grpc.aio

from parlmesh.cli.connection import explained
from parlmesh.cli.screen.fleet_view import FleetView
from parlmesh.rpc import Backoff, open_channel, pages
from parlmesh.security import SecurityConfig
from parlmesh.v1.scheduler_service_pb2 import GetStatisticsRequest, ListActorsRequest
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.training_service_pb2 import Training, WatchTrainingRequest
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

POLL_SECONDS = 0.5
CALL_SECONDS = 2.0
STREAM_SECONDS = 3_600.0
"""A watch is reopened after this long, so that no stream waits forever."""

PASSING = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        # A restarted learner may serve before it has loaded its run.
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.CANCELLED,
    }
)
"""Statuses of a service that is briefly away; all others are raised."""


async def follow_training(view: FleetView, address: str, security: SecurityConfig, run_id: str = "") -> Training:
    """Updates the view from the learner until the run has ended; survives restarts of the learner."""
    # Only jitter to spread watchers out; no secret depends on it.
    backoff = Backoff(first=0.1, limit=1.0, rng=random.Random())  # noqa: S311
    async with open_channel(address, security) as channel:
        stub = TrainingServiceStub(channel)
        while True:
            try:
                async for answer in stub.WatchTraining(
                    WatchTrainingRequest(run_id=run_id), timeout=STREAM_SECONDS, wait_for_ready=True
                ):
                    view.learn(answer.training)
                    backoff.reset()
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    raise explained(error, "learner", address) from None
            if view.training is not None and view.ended:
                return view.training
            await asyncio.sleep(backoff.next())


async def poll_scheduler(view: FleetView, address: str, security: SecurityConfig) -> Never:
    """Updates the view from the scheduler until cancelled; clears it while the scheduler is away."""
    async with open_channel(address, security) as channel:
        stub = SchedulerServiceStub(channel)
        while True:
            try:
                view.statistics = await stub.GetStatistics(GetStatisticsRequest(), timeout=CALL_SECONDS)
                listing = pages(partial(stub.ListActors, timeout=CALL_SECONDS), ListActorsRequest())
                view.actors = tuple([actor async for page in listing for actor in page.actors])
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    raise explained(error, "scheduler", address) from None
                view.statistics, view.actors = None, ()
            await asyncio.sleep(POLL_SECONDS)
