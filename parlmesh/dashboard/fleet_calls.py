"""Calls the fleet's services over gRPC; answers are shared, and every call has a deadline."""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from parlmesh.errors import DeadlineExceeded, FleetError, NotFound, Unavailable
from parlmesh.rpc import error_from_rpc, open_channel
from parlmesh.rpc.error_statuses import says_its_reason
from parlmesh.v1 import federation_service_pb2 as federation_pb
from parlmesh.v1 import metrics_service_pb2 as metrics_pb
from parlmesh.v1 import model_service_pb2 as model_pb
from parlmesh.v1 import scheduler_service_pb2 as pb
from parlmesh.v1 import task_pb2
from parlmesh.v1 import training_service_pb2 as training_pb
from parlmesh.v1.federation_service_pb2_grpc import FederationServiceStub
from parlmesh.v1.metrics_service_pb2_grpc import MetricsServiceStub
from parlmesh.v1.model_service_pb2_grpc import ModelServiceStub
from parlmesh.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub

from .answer_cache import SharedAnswers
from .config import DashboardConfig

CALL_SECONDS = 5.0
ACT_SECONDS = 30.0
"""Deadline of an action: cancelling ten thousand tasks takes longer than a read, and a visitor waits for it."""
FRESH_SECONDS = 0.8
"""Younger answers are reused; slightly less than the second between two looks."""
MOST_ACTORS = 1_000

T = TypeVar("T")


class Fleet:
    """Reads for every visitor; acts for operators."""

    def __init__(self, config: DashboardConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.answers = SharedAnswers(clock)
        self._config = config
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    @property
    def has_scheduler(self) -> bool:
        return bool(self._config.scheduler)

    @property
    def has_learner(self) -> bool:
        return bool(self._config.learner)

    async def statistics(self) -> pb.GetStatisticsResponse:
        answer: pb.GetStatisticsResponse = await self._shared(
            self._scheduler().GetStatistics, pb.GetStatisticsRequest()
        )
        return answer

    async def actors(self) -> list[pb.Actor]:
        """All actors, up to a number that a page can show."""
        answer = await self._shared(self._scheduler().ListActors, pb.ListActorsRequest(page_size=MOST_ACTORS))
        return list(answer.actors)

    async def trace(self, request: pb.GetTraceRequest, age_seconds: float = FRESH_SECONDS) -> str:
        answer = await self._shared(self._scheduler().GetTrace, request, age_seconds)
        return str(answer.trace_json)

    async def tasks(self, request: pb.ListTasksRequest) -> pb.ListTasksResponse:
        answer: pb.ListTasksResponse = await self._shared(self._scheduler().ListTasks, request)
        return answer

    async def task(self, task_id: str) -> task_pb2.Task:
        answer: pb.GetTaskResponse = await self._shared(self._scheduler().GetTask, pb.GetTaskRequest(task_id=task_id))
        return answer.task

    async def explanation(self, task_id: str) -> str:
        request = pb.ExplainTaskRequest(task_id=task_id)
        return str((await self._shared(self._scheduler().ExplainTask, request)).explanation)

    async def trainings(self) -> list[training_pb.Training]:
        """Empty if the learner has a federation instead of runs."""
        stub: Any = TrainingServiceStub(self._channel("learner"))
        try:
            return list((await self._shared(stub.ListTrainings, training_pb.ListTrainingsRequest())).trainings)
        except Unavailable as error:
            if error.reason != "NOT_SERVED":
                raise
            return []

    async def curves(self, request: metrics_pb.QueryMetricsRequest) -> list[metrics_pb.Series]:
        stub: Any = MetricsServiceStub(self._channel("learner"))
        return list((await self._shared(stub.QueryMetrics, request)).series)

    async def models(self) -> list[model_pb.Model]:
        """Empty if the learner has a federation instead of runs."""
        stub: Any = ModelServiceStub(self._channel("learner"))
        try:
            return list((await self._shared(stub.ListModels, model_pb.ListModelsRequest())).models)
        except Unavailable as error:
            if error.reason != "NOT_SERVED":
                raise
            return []

    async def federation(self) -> federation_pb.Federation | None:
        """The most recently started federation; None if there is none or the learner has runs instead."""
        stub: Any = FederationServiceStub(self._channel("learner"))
        try:
            request = federation_pb.GetFederationRequest()
            answer: federation_pb.GetFederationResponse = await self._shared(stub.GetFederation, request)
            return answer.federation
        except FleetError as error:
            if error.reason == "NOT_SERVED" or isinstance(error, NotFound):
                return None
            raise

    async def rounds(self, size: int) -> list[federation_pb.Round]:
        stub: Any = FederationServiceStub(self._channel("learner"))
        return list((await self._shared(stub.ListRounds, federation_pb.ListRoundsRequest(page_size=size))).rounds)

    async def cancel(self, task_ids: list[str]) -> list[str]:
        answer = await self._act(self._scheduler().CancelTasks, pb.CancelTasksRequest(task_ids=task_ids))
        return list(answer.cancelled_task_ids)

    async def command(self, actor_ids: list[str], command: pb.ActorCommand.ValueType, reason: str = "") -> int:
        request = pb.UpdateActorsRequest(actor_ids=actor_ids, command=command, reason=reason)
        return len((await self._act(self._scheduler().UpdateActors, request)).actors)

    async def promote(self, run_id: str, version: int) -> None:
        stub: Any = ModelServiceStub(self._channel("learner"))
        await self._act(stub.PromoteModel, model_pb.PromoteModelRequest(run_id=run_id, version=version))

    async def steer(self, run_id: str, verb: str) -> None:
        """Pauses, resumes or stops a run."""
        stub: Any = TrainingServiceStub(self._channel("learner"))
        calls = {
            "pause": (stub.PauseTraining, training_pb.PauseTrainingRequest),
            "resume": (stub.ResumeTraining, training_pb.ResumeTrainingRequest),
            "stop": (stub.StopTraining, training_pb.StopTrainingRequest),
        }
        call, request = calls[verb]
        await self._act(call, request(run_id=run_id))

    def _scheduler(self) -> Any:
        return SchedulerServiceStub(self._channel("scheduler"))

    def _channel(self, service: str) -> grpc.aio.Channel:
        address = self._config.scheduler if service == "scheduler" else self._config.learner
        if not address:
            raise Unavailable(f"this page was started without a {service}", reason="NONE")
        if service not in self._channels:
            self._channels[service] = open_channel(address, self._config.security)
        return self._channels[service]

    async def _shared(self, call: Any, request: Message, age_seconds: float = FRESH_SECONDS) -> Any:
        # Every method has its own request type.
        key = (request.DESCRIPTOR.full_name, request.SerializeToString(deterministic=True))
        return await self.answers.get(key, age_seconds, lambda: self._call(call, request))

    async def _act(self, call: Any, request: Message) -> Any:
        try:
            return await self._call(call, request, ACT_SECONDS)
        finally:
            self.answers.forget()

    async def _call(
        self, call: Callable[..., Awaitable[T]], request: Message, deadline_seconds: float = CALL_SECONDS
    ) -> T:
        try:
            return await call(request, timeout=deadline_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._explained(error, request) from None

    def _explained(self, error: grpc.aio.AioRpcError, request: Message) -> FleetError:
        scheduler = request.DESCRIPTOR.file.name.endswith(("scheduler_service.proto", "task.proto"))
        service = "scheduler" if scheduler else "learner"
        address = self._config.scheduler if scheduler else self._config.learner
        if says_its_reason(error):
            return error_from_rpc(error)
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            return Unavailable(f"the {service} at {address} does not answer; the page tries again", address=address)
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"the {service} at {address} did not answer in time")
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(f"the server at {address} does not serve this", reason="NOT_SERVED")
        return error_from_rpc(error)
