"""TrainingService over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import grpc.aio

from parlmesh.config import effective
from parlmesh.errors import FailedPrecondition
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceServicer
from parlmesh.wire import struct_to_proto

from .progress import RunState
from .run import TrainingRun
from .streaming import unless

_WATCH_INTERVAL_SECONDS = 0.1

Context = grpc.aio.ServicerContext[Any, Any]


class TrainingServicer(TrainingServiceServicer):
    """TrainingService for a learner with one run."""

    def __init__(self, run: TrainingRun, stopping: asyncio.Event) -> None:
        self._run = run
        self._stopping = stopping
        self._created = datetime.now(UTC)

    async def CreateTraining(self, request: pb.CreateTrainingRequest, context: Context) -> pb.CreateTrainingResponse:
        run_id = self._run.registry.run_id
        message = (
            f"this learner trains the one run of its configuration, {run_id!r}; start another learner for another run"
        )
        raise FailedPrecondition(message, reason="ONE_RUN")

    async def StartTraining(self, request: pb.StartTrainingRequest, context: Context) -> pb.StartTrainingResponse:
        self._run.registry.check_run(request.run_id)
        raise FailedPrecondition(f"the run is {self._run.progress.state.value} already", reason="STARTED")

    async def PauseTraining(self, request: pb.PauseTrainingRequest, context: Context) -> pb.PauseTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.pause()
        return pb.PauseTrainingResponse(training=self._training())

    async def ResumeTraining(self, request: pb.ResumeTrainingRequest, context: Context) -> pb.ResumeTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.resume()
        return pb.ResumeTrainingResponse(training=self._training())

    async def StopTraining(self, request: pb.StopTrainingRequest, context: Context) -> pb.StopTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.stop("stopped on request")
        return pb.StopTrainingResponse(training=self._training())

    async def GetTraining(self, request: pb.GetTrainingRequest, context: Context) -> pb.GetTrainingResponse:
        self._run.registry.check_run(request.run_id)
        return pb.GetTrainingResponse(training=self._training())

    async def ListTrainings(self, request: pb.ListTrainingsRequest, context: Context) -> pb.ListTrainingsResponse:
        return pb.ListTrainingsResponse(trainings=[self._training()])

    async def WatchTraining(
        self, request: pb.WatchTrainingRequest, context: Context
    ) -> AsyncIterator[pb.WatchTrainingResponse]:
        self._run.registry.check_run(request.run_id)
        while True:
            training = self._training()
            yield pb.WatchTrainingResponse(training=training)
            if self._run.progress.state.final and training.state == _STATES[self._run.progress.state]:
                return
            await asyncio.sleep(_WATCH_INTERVAL_SECONDS)
            if training == self._training():
                await unless(self._stopping, self._run.changed())

    def _training(self) -> pb.Training:
        run, progress = self._run, self._run.progress
        training = pb.Training(
            run_id=run.registry.run_id,
            state=_STATES[progress.state],
            configuration=struct_to_proto(effective(run.config)),
            progress=pb.TrainingProgress(
                steps=progress.steps,
                step_budget=run.config.step_budget,
                policy_version=progress.version,
                steps_per_second=run.rate.per_second(),
                episode_return=progress.episode_return,
                evaluation_return=progress.evaluation_return,
                goal_return=run.config.goal_return,
                policy_lag=progress.policy_lag,
                max_policy_lag_seen=progress.max_policy_lag_seen,
                queued_trajectories=len(run.queue),
                received_trajectories=run.queue.received,
                dropped_trajectories=dict(run.queue.dropped),
                elapsed_seconds=progress.elapsed_seconds,
                episodes=progress.episodes,
            ),
            reason=progress.reason,
        )
        training.create_time.FromDatetime(self._created)
        return training


_STATES = {
    RunState.CREATED: pb.TRAINING_STATE_CREATED,
    RunState.RUNNING: pb.TRAINING_STATE_RUNNING,
    RunState.PAUSED: pb.TRAINING_STATE_PAUSED,
    RunState.FINISHED: pb.TRAINING_STATE_FINISHED,
    RunState.STOPPED: pb.TRAINING_STATE_STOPPED,
    RunState.FAILED: pb.TRAINING_STATE_FAILED,
}
