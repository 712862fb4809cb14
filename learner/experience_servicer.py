"""ExperienceService over gRPC: decode, call, encode."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
from google.rpc import status_pb2  # type: ignore[import-untyped]

from parlmesh.errors import FleetError
from parlmesh.rpc import status_from_error
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceServicer
from parlmesh.wire import TensorLimits, trajectory_from_proto

from .run import TrainingRun

Context = grpc.aio.ServicerContext[Any, Any]


class ExperienceServicer(ExperienceServiceServicer):
    """ExperienceService."""

    def __init__(self, run: TrainingRun, max_bytes: int, on_delivered: Callable[[str], None]) -> None:
        self._run = run
        self._limits = TensorLimits(max_bytes=max_bytes)
        self._on_delivered = on_delivered

    async def UploadTrajectories(
        self, request_iterator: AsyncIterator[pb.UploadTrajectoriesRequest], context: Context
    ) -> AsyncIterator[pb.UploadTrajectoriesResponse]:
        async for request in request_iterator:
            yield pb.UploadTrajectoriesResponse(
                sequence=request.trajectory.sequence,
                status=self._receive(request.trajectory),
                policy_version=self._run.progress.version,
                credits=self._run.queue.room,
            )

    def _receive(self, message: pb.Trajectory) -> status_pb2.Status:
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
