"""TrainingService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceServicer
from parlmesh.wire import struct_from_proto, struct_to_proto

from ..runs.progress import RunState
from ..runs.run_entry import Entry
from ..runs.runs import Runs
from .page_tokens import page
from .server_stop import unless

_WATCH_INTERVAL_SECONDS = 0.1

Context = grpc.aio.ServicerContext[Any, Any]


class TrainingServicer(TrainingServiceServicer):
    """TrainingService."""

    def __init__(self, runs: Runs, stopping: asyncio.Event) -> None:
        self._runs = runs
        self._stopping = stopping

    async def CreateTraining(self, request: pb.CreateTrainingRequest, context: Context) -> pb.CreateTrainingResponse:
        entry = await self._runs.create(request.run_id, struct_from_proto(request.configuration))
        return pb.CreateTrainingResponse(training=training_to_proto(entry))

    async def StartTraining(self, request: pb.StartTrainingRequest, context: Context) -> pb.StartTrainingResponse:
        return pb.StartTrainingResponse(training=training_to_proto(await self._runs.start(request.run_id)))

    async def PauseTraining(self, request: pb.PauseTrainingRequest, context: Context) -> pb.PauseTrainingResponse:
        return pb.PauseTrainingResponse(training=training_to_proto(await self._runs.pause(request.run_id)))

    async def ResumeTraining(self, request: pb.ResumeTrainingRequest, context: Context) -> pb.ResumeTrainingResponse:
        return pb.ResumeTrainingResponse(training=training_to_proto(await self._runs.resume(request.run_id)))

    async def StopTraining(self, request: pb.StopTrainingRequest, context: Context) -> pb.StopTrainingResponse:
        return pb.StopTrainingResponse(training=training_to_proto(await self._runs.stop(request.run_id)))

    async def GetTraining(self, request: pb.GetTrainingRequest, context: Context) -> pb.GetTrainingResponse:
        return pb.GetTrainingResponse(training=training_to_proto(self._runs.get(request.run_id)))

    async def ListTrainings(self, request: pb.ListTrainingsRequest, context: Context) -> pb.ListTrainingsResponse:
        found, token = page(
            self._runs.newest_first(),
            lambda entry: (entry.record.created_time, 0, entry.run_id),
            training_to_proto,
            size=request.page_size,
            token=request.page_token,
        )
        return pb.ListTrainingsResponse(trainings=found, next_page_token=token)

    async def WatchTraining(
        self, request: pb.WatchTrainingRequest, context: Context
    ) -> AsyncIterator[pb.WatchTrainingResponse]:
        entry = self._runs.get(request.run_id)
        while True:
            training = training_to_proto(entry)
            yield pb.WatchTrainingResponse(training=training)
            if training.state in _FINAL:
                return
            await asyncio.sleep(_WATCH_INTERVAL_SECONDS)
            if training == training_to_proto(entry):
                await unless(self._stopping, entry.changed())


def training_to_proto(entry: Entry) -> pb.Training:
    """A run's present state, as a proto."""
    config, standing = entry.config.training, dict(entry.standing)
    outcome = {name: standing.pop(name, None) for name in ("best_evaluation_return", "best_version", "policy_digest")}
    training = pb.Training(
        run_id=entry.run_id,
        state=_STATES[entry.state],
        configuration=struct_to_proto(entry.record.configuration),
        progress=pb.TrainingProgress(step_budget=config.step_budget, goal_return=config.goal_return, **standing),
        reason=entry.reason,
        run_uid=entry.registry.run_uid,
        obstacle=entry.obstacle,
        notes=entry.notes,
    )
    training.create_time.FromNanoseconds(round(entry.record.created_time * 1e9))
    if entry.record.state.final:
        training.result.CopyFrom(pb.TrainingResult(policy_version=standing.get("policy_version", 0), **outcome))
        training.result.end_time.FromNanoseconds(round((entry.record.end_time or 0.0) * 1e9))
    return training


_STATES = {
    RunState.CREATED: pb.TRAINING_STATE_CREATED,
    RunState.RUNNING: pb.TRAINING_STATE_RUNNING,
    RunState.PAUSED: pb.TRAINING_STATE_PAUSED,
    RunState.FINISHED: pb.TRAINING_STATE_FINISHED,
    RunState.STOPPED: pb.TRAINING_STATE_STOPPED,
    RunState.FAILED: pb.TRAINING_STATE_FAILED,
}
_FINAL = frozenset(proto for state, proto in _STATES.items() if state.final)
