"""The learner over gRPC: decode, call, encode."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.config import effective
from parlmesh.errors import FailedPrecondition, FleetError, Unavailable
from parlmesh.rpc import status_from_error
from parlmesh.v1 import experience_service_pb2 as experience_pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceServicer
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceServicer
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceServicer
from parlmesh.wire import TensorLimits, struct_to_proto, trajectory_from_proto

from .progress import RunState
from .registry import PolicyRegistry, Published
from .run import TrainingRun

_CHUNK_BYTES = 1 << 20
_WATCH_INTERVAL_SECONDS = 0.1

Context = grpc.aio.ServicerContext[Any, Any]


class PolicyServicer(PolicyServiceServicer):
    """PolicyService."""

    def __init__(self, registry: PolicyRegistry, stopping: asyncio.Event) -> None:
        self._registry = registry
        self._stopping = stopping

    async def GetPolicy(
        self, request: policy_pb.GetPolicyRequest, context: Context
    ) -> AsyncIterator[policy_pb.GetPolicyResponse]:
        published = self._registry.get(request.run_id, request.version)
        header, data = _header(published), published.blob.data
        if request.have_version == published.blob.version:
            yield policy_pb.GetPolicyResponse(header=header, not_modified=True)
            return
        for start in range(0, len(data), _CHUNK_BYTES):
            chunk = data[start : start + _CHUNK_BYTES]
            yield policy_pb.GetPolicyResponse(header=header if start == 0 else None, data=chunk)

    async def WatchPolicy(
        self, request: policy_pb.WatchPolicyRequest, context: Context
    ) -> AsyncIterator[policy_pb.WatchPolicyResponse]:
        self._registry.check_run(request.run_id)
        version = 0
        while True:
            published = await _unless(self._stopping, self._registry.newer_than(version))
            version = published.blob.version
            yield policy_pb.WatchPolicyResponse(header=_header(published))


class ExperienceServicer(ExperienceServiceServicer):
    """ExperienceService."""

    def __init__(self, run: TrainingRun, max_bytes: int, on_delivered: Callable[[str], None]) -> None:
        self._run = run
        self._limits = TensorLimits(max_bytes=max_bytes)
        self._on_delivered = on_delivered

    async def UploadTrajectories(
        self, request_iterator: AsyncIterator[experience_pb.UploadTrajectoriesRequest], context: Context
    ) -> AsyncIterator[experience_pb.UploadTrajectoriesResponse]:
        async for request in request_iterator:
            yield experience_pb.UploadTrajectoriesResponse(
                sequence=request.trajectory.sequence,
                status=self._receive(request.trajectory),
                policy_version=self._run.progress.version,
                credits=self._run.queue.room,
            )

    def _receive(self, message: experience_pb.Trajectory) -> status_pb2.Status:
        try:
            trajectory = trajectory_from_proto(message, self._limits)
        except FleetError as error:
            self._run.queue.refuse(error)
            return status_from_error(error)
        try:
            self._run.receive(trajectory)
        except FleetError as error:
            return status_from_error(error)
        self._on_delivered(trajectory.task_id)
        return status_pb2.Status()


class TrainingServicer(TrainingServiceServicer):
    """TrainingService for a learner with one run."""

    def __init__(self, run: TrainingRun, stopping: asyncio.Event) -> None:
        self._run = run
        self._stopping = stopping
        self._created = datetime.now(UTC)

    async def CreateTraining(
        self, request: training_pb.CreateTrainingRequest, context: Context
    ) -> training_pb.CreateTrainingResponse:
        run_id = self._run.registry.run_id
        message = (
            f"this learner trains the one run of its configuration, {run_id!r}; start another learner for another run"
        )
        raise FailedPrecondition(message, reason="ONE_RUN")

    async def StartTraining(
        self, request: training_pb.StartTrainingRequest, context: Context
    ) -> training_pb.StartTrainingResponse:
        self._run.registry.check_run(request.run_id)
        raise FailedPrecondition(f"the run is {self._run.progress.state.value} already", reason="STARTED")

    async def PauseTraining(
        self, request: training_pb.PauseTrainingRequest, context: Context
    ) -> training_pb.PauseTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.pause()
        return training_pb.PauseTrainingResponse(training=self._training())

    async def ResumeTraining(
        self, request: training_pb.ResumeTrainingRequest, context: Context
    ) -> training_pb.ResumeTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.resume()
        return training_pb.ResumeTrainingResponse(training=self._training())

    async def StopTraining(
        self, request: training_pb.StopTrainingRequest, context: Context
    ) -> training_pb.StopTrainingResponse:
        self._run.registry.check_run(request.run_id)
        self._run.stop("stopped on request")
        return training_pb.StopTrainingResponse(training=self._training())

    async def GetTraining(
        self, request: training_pb.GetTrainingRequest, context: Context
    ) -> training_pb.GetTrainingResponse:
        self._run.registry.check_run(request.run_id)
        return training_pb.GetTrainingResponse(training=self._training())

    async def ListTrainings(
        self, request: training_pb.ListTrainingsRequest, context: Context
    ) -> training_pb.ListTrainingsResponse:
        return training_pb.ListTrainingsResponse(trainings=[self._training()])

    async def WatchTraining(
        self, request: training_pb.WatchTrainingRequest, context: Context
    ) -> AsyncIterator[training_pb.WatchTrainingResponse]:
        self._run.registry.check_run(request.run_id)
        while True:
            training = self._training()
            yield training_pb.WatchTrainingResponse(training=training)
            if self._run.progress.state.final and training.state == _STATES[self._run.progress.state]:
                return
            await asyncio.sleep(_WATCH_INTERVAL_SECONDS)
            if training == self._training():
                await _unless(self._stopping, self._run.changed())

    def _training(self) -> training_pb.Training:
        run, progress = self._run, self._run.progress
        training = training_pb.Training(
            run_id=run.registry.run_id,
            state=_STATES[progress.state],
            configuration=struct_to_proto(effective(run.config)),
            progress=training_pb.TrainingProgress(
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
    RunState.CREATED: training_pb.TRAINING_STATE_CREATED,
    RunState.RUNNING: training_pb.TRAINING_STATE_RUNNING,
    RunState.PAUSED: training_pb.TRAINING_STATE_PAUSED,
    RunState.FINISHED: training_pb.TRAINING_STATE_FINISHED,
    RunState.STOPPED: training_pb.TRAINING_STATE_STOPPED,
    RunState.FAILED: training_pb.TRAINING_STATE_FAILED,
}


def _header(published: Published) -> policy_pb.PolicyHeader:
    blob = published.blob
    header = policy_pb.PolicyHeader(
        run_id=blob.run_id,
        version=blob.version,
        digest=blob.digest,
        size_bytes=len(blob.data),
        encoding=policy_pb.POLICY_ENCODING_SAFETENSORS,
    )
    header.publish_time.FromNanoseconds(round(published.publish_time * 1e9))
    return header


async def _unless(stopping: asyncio.Event, waiting: Any) -> Any:
    """The awaited value, or Unavailable as soon as the server stops: a drain must not wait for watchers."""
    wanted, end = asyncio.ensure_future(waiting), asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((wanted, end), return_when=asyncio.FIRST_COMPLETED)
        if wanted.done():
            return wanted.result()
        raise Unavailable("the learner is stopping", reason="STOPPING")
    finally:
        wanted.cancel()
        end.cancel()
