"""Follows one run over the learner's services, and runs the processes of a local fleet."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import grpc.aio
import numpy as np
from google.protobuf.json_format import ParseDict

from parlmesh.errors import DeadlineExceeded, NotFound, Unavailable
from parlmesh.function_tasks import ARGUMENTS
from parlmesh.local.fleet_processes import UpFleet
from parlmesh.local.process_configs import RunPaths, UpConfig, training_settings, up_settings
from parlmesh.processes import Supervisor, write_settings
from parlmesh.rpc import Backoff, error_from_rpc, open_channel, pages
from parlmesh.rpc.error_statuses import fleet_error_in, says_its_reason
from parlmesh.rpc.event_loop import loop_factory
from parlmesh.rpc.task_group import first_of
from parlmesh.telemetry import get_logger
from parlmesh.types import Array
from parlmesh.v1 import metrics_service_pb2 as metrics_pb
from parlmesh.v1 import model_service_pb2 as model_pb
from parlmesh.v1 import training_service_pb2 as pb
from parlmesh.v1.metrics_service_pb2_grpc import MetricsServiceStub
from parlmesh.v1.model_service_pb2_grpc import ModelServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import struct_from_proto

T = TypeVar("T")

log = get_logger("parlmesh.api")

_CALL_SECONDS = 30.0
_STREAM_SECONDS = 3_600.0
_GRACE_SECONDS = 5.0
_MOST_POINTS = 10_000
_LONGEST_ARGUMENTS = 100_000
_FINAL = (pb.TRAINING_STATE_FINISHED, pb.TRAINING_STATE_STOPPED, pb.TRAINING_STATE_FAILED)
# Statuses of a service that is briefly away; all others are raised.
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.CANCELLED,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    state: str = "starting"
    """starting, created, running, paused, finished, stopped or failed."""
    steps: int = 0
    step_budget: int = 0
    policy_version: int = 0
    steps_per_second: float = 0.0
    episode_return: float | None = None
    """Mean of the last 100 training episodes."""
    evaluation_return: float | None = None
    """Mean of the last evaluation."""
    evaluations: int = 0
    checkpoint_version: int = 0
    """Policy version of the newest checkpoint on disk; 0 before the first."""
    reason: str = ""
    """Why it ended, or why it makes no progress."""
    failed_rollouts: int = 0
    failed_evaluations: int = 0
    last_failure: str = ""
    """One sentence on the last failure."""
    traceback: str = ""
    """Traceback of the last failure in an environment or a plug-in."""
    notes: tuple[str, ...] = ()
    """Advice on the settings, in sentences."""
    environment: dict[str, Any] = field(default_factory=dict)


class Follower:
    """`run` occupies one thread of the caller; the other methods are for other threads, during and after it."""

    def __init__(
        self, run_id: str, serving: Callable[["Follower"], AbstractAsyncContextManager[str]], config: UpConfig
    ):
        self._run_id = run_id
        self._serving = serving
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._stopped = False
        self._lock = threading.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._trouble: Callable[[], Awaitable[str]] = asyncio.Event().wait  # type: ignore[assignment]
        self._kept_curves: dict[str, tuple[Array, Array]] = {}
        self._kept_policy = b""

    @classmethod
    def local(cls, config: UpConfig, paths: RunPaths) -> Self:
        """A run on a local fleet that this program starts."""

        @asynccontextmanager
        async def serving(self: Follower) -> Any:
            write_settings(paths.settings, up_settings(config, paths.root.name))
            # A fleet that cannot start raises what these say.
            early: list[str] | None = []

            def note(text: str) -> None:
                if early is None:
                    log.warning("fleet", note=text)
                else:
                    early.append(text)

            async with Supervisor(
                note=note,
                grace_seconds=_GRACE_SECONDS,
                environment=_environment(),
            ) as supervisor:
                fleet = UpFleet(config, paths, supervisor)
                self._trouble = lambda: first_of(fleet.lost(), _without_actors(fleet))
                try:
                    await fleet.start()
                    noted, early = early or [], None
                    for text in noted:
                        note(text)
                    yield fleet.learner
                finally:
                    await fleet.stop()

        return cls(paths.root.name, serving, config)

    @classmethod
    def remote(cls, config: UpConfig, learner: str, run_id: str) -> Self:
        """A run on a running learner."""

        @asynccontextmanager
        async def serving(self: Follower) -> Any:
            async with open_channel(learner, config.security) as channel:
                stub = TrainingServiceStub(channel)
                request = pb.CreateTrainingRequest(run_id=run_id)
                ParseDict(training_settings(config), request.configuration)
                try:
                    await stub.CreateTraining(request, timeout=_CALL_SECONDS)
                    await stub.StartTraining(pb.StartTrainingRequest(run_id=run_id), timeout=_CALL_SECONDS)
                except grpc.aio.AioRpcError as error:
                    known = error_from_rpc(error)
                    if isinstance(known, (Unavailable, DeadlineExceeded)) and not says_its_reason(error):
                        raise Unavailable(
                            f"no learner answers at {learner}; is it running, and is this its address? "
                            f"({known.message:.200})",
                            reason="NO_ANSWER",
                            address=learner,
                        ) from None
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        raise Unavailable(
                            f"the server at {learner} is not a learner, or it is an older one; a learner's port is "
                            "50052 unless it was started with another",
                            reason="NOT_SERVED",
                            address=learner,
                        ) from None
                    raise known from None
            yield learner

        return cls(run_id, serving, config)

    def run(self, told: Callable[[Progress], None]) -> None:
        """Follows the run to its end."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(self._followed(told))

    def stop(self) -> None:
        """Asks the run to end; `run` returns when it has."""
        with self._lock:
            self._stopped = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stopping.set)

    def command(self, word: Literal["Pause", "Resume"]) -> None:
        """Calls PauseTraining or ResumeTraining."""
        request = getattr(pb, f"{word}TrainingRequest")(run_id=self._run_id)
        self._call(lambda channel: getattr(TrainingServiceStub(channel), f"{word}Training")(request, timeout=30.0))

    def curves(self) -> dict[str, tuple[Array, Array]]:
        """Steps and values of every curve, by name."""
        if self._channel is not None:
            self._kept_curves = self._call(self._fetch_curves)
        return dict(self._kept_curves)

    def best_policy(self) -> bytes:
        """The bytes of the best policy so far; raises NotFound when there is none yet."""
        if self._channel is not None:
            self._kept_policy = self._call(self._fetch_policy) or self._kept_policy
        if not self._kept_policy:
            raise NotFound(f"run {self._run_id} has no model yet", reason="NO_MODEL")
        return self._kept_policy

    async def _followed(self, told: Callable[[Progress], None]) -> None:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._stopped:
                self._stopping.set()
        try:
            async with self._serving(self) as address, open_channel(address, self._config.security) as channel:
                self._channel = channel
                try:
                    await first_of(self._watch(channel, told), self._lost(), self._ended(channel))
                    # Kept for calls after the end.
                    self._kept_curves = await self._fetch_curves(channel)
                    self._kept_policy = await self._fetch_policy(channel)
                finally:
                    self._channel = None
        except BaseExceptionGroup as errors:
            known = fleet_error_in(errors)
            if known is None:
                raise
            raise known from None
        finally:
            with self._lock:
                self._loop = None

    async def _watch(self, channel: grpc.aio.Channel, told: Callable[[Progress], None]) -> None:
        backoff = Backoff(first=0.1, limit=1.0)
        stub = TrainingServiceStub(channel)
        while True:
            try:
                watched = pb.WatchTrainingRequest(run_id=self._run_id)
                async for answer in stub.WatchTraining(watched, timeout=_STREAM_SECONDS, wait_for_ready=True):
                    backoff.reset()
                    # In a thread, because a callback may ask the run for its curves or its policy.
                    await asyncio.to_thread(told, self._report(answer.training))
                    if answer.training.state in _FINAL:
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() not in _PASSING:
                    raise error_from_rpc(error) from None
                log.warning("learner_away", run_id=self._run_id, error=error_from_rpc(error).message)
            await asyncio.sleep(backoff.next())

    async def _lost(self) -> None:
        raise Unavailable(await self._trouble() or "the fleet was stopped", reason="LOCAL_FLEET_FAILED")

    async def _ended(self, channel: grpc.aio.Channel) -> None:
        """Stops the run when asked to; the watch then sees its end."""
        await self._stopping.wait()
        try:
            request = pb.StopTrainingRequest(run_id=self._run_id)
            await TrainingServiceStub(channel).StopTraining(request, timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from None
        await asyncio.Event().wait()

    def _report(self, training: pb.Training) -> Progress:
        told = training.progress
        configuration = struct_from_proto(training.configuration)
        return Progress(
            state=pb.TrainingState.Name(training.state).removeprefix("TRAINING_STATE_").lower(),
            steps=told.steps,
            step_budget=told.step_budget,
            policy_version=told.policy_version,
            steps_per_second=told.steps_per_second,
            episode_return=told.episode_return if told.HasField("episode_return") else None,
            evaluation_return=told.evaluation_return if told.HasField("evaluation_return") else None,
            evaluations=told.evaluations,
            checkpoint_version=told.checkpoint_version,
            reason=training.reason or training.obstacle,
            failed_rollouts=told.failed_rollouts,
            failed_evaluations=told.failed_evaluations,
            last_failure=told.last_failure,
            traceback=told.last_failure_traceback,
            notes=tuple(training.notes),
            environment=dict(configuration.get("environment") or {}),
        )

    async def _fetch_curves(self, channel: grpc.aio.Channel) -> dict[str, tuple[Array, Array]]:
        request = metrics_pb.QueryMetricsRequest(run_id=self._run_id, max_points=_MOST_POINTS)
        answer = await MetricsServiceStub(channel).QueryMetrics(request, timeout=_CALL_SECONDS)
        return {one.name: (np.array(one.steps, np.int64), np.array(one.values)) for one in answer.series}

    async def _fetch_policy(self, channel: grpc.aio.Channel) -> bytes:
        stub = ModelServiceStub(channel)

        async def listed(request: model_pb.ListModelsRequest) -> model_pb.ListModelsResponse:
            return await stub.ListModels(request, timeout=_CALL_SECONDS)

        listing = pages(listed, model_pb.ListModelsRequest(run_id=self._run_id))
        models = [model async for page in listing for model in page.models]
        if not models:
            return b""
        evaluated = [model for model in models if "evaluation_return" in model.metadata]
        best = max(evaluated, key=lambda model: (model.metadata["evaluation_return"], model.version), default=models[0])
        request = model_pb.ExportModelRequest(
            run_id=self._run_id, version=best.version, format=model_pb.MODEL_FORMAT_SAFETENSORS
        )
        return b"".join([part.data async for part in stub.ExportModel(request, timeout=_CALL_SECONDS)])

    def _call(self, make: Callable[[grpc.aio.Channel], Coroutine[Any, Any, T]]) -> T:
        """Calls the learner from another thread."""
        with self._lock:
            loop, channel = self._loop, self._channel
        if loop is None or channel is None:
            raise Unavailable(f"run {self._run_id} is not running", reason="NOT_RUNNING")

        async def called() -> T:
            try:
                return await make(channel)
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from None

        try:
            return asyncio.run_coroutine_threadsafe(called(), loop).result(_CALL_SECONDS)
        except TimeoutError:
            raise Unavailable("the learner did not answer", reason="NO_ANSWER") from None


async def _without_actors(fleet: UpFleet) -> str:
    return f"no actor can be kept alive: {await fleet.without_actors()}"


def _environment() -> dict[str, str]:
    """Lets the fleet's processes import what this program can import, and the program itself for its classes."""
    arguments = json.dumps(sys.argv[1:])
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
        # The system takes no longer ones.
        ARGUMENTS: arguments if len(arguments) <= _LONGEST_ARGUMENTS else "[]",
    }
