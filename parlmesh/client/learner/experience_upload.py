"""A program's own experience: steps it took itself, uploaded to a run as whole trajectories."""

import asyncio
import itertools
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc.aio
import numpy as np

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, Unavailable
from parlmesh.rpc import error_from_rpc, error_from_status
from parlmesh.types import (
    ACTION,
    LOG_PROB,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    Array,
    Episode,
    Fragment,
)
from parlmesh.v1 import experience_service_pb2 as pb
from parlmesh.v1 import policy_service_pb2 as policy_pb
from parlmesh.v1 import training_service_pb2
from parlmesh.v1.experience_service_pb2_grpc import ExperienceServiceStub
from parlmesh.v1.policy_service_pb2_grpc import PolicyServiceStub
from parlmesh.v1.training_service_pb2_grpc import TrainingServiceStub
from parlmesh.wire import struct_from_proto, trajectory_to_proto

from .own_steps import Step, StepShapes, shapes_in, step_of

_MOST_WAITING = 1_000_000
# Of a trajectory that was too old when it arrived: the learner may publish several versions meanwhile.
_TRIES = 10


@dataclass(frozen=True, slots=True)
class UploadedExperience:
    """The result of one call, with the steps given so far."""

    trajectories: int = 0
    """Accepted in this call."""
    waiting_steps: int = 0
    """Kept until they fill a trajectory."""
    policy_version: int = 0
    """The run's newest version, as last reported."""


class _Row(NamedTuple):
    step: Step
    valid: bool


class ExperienceUploads:
    """Steps of one environment in order, cut into trajectories of the run's shape. A step that does not start where the
    last one ended starts a new episode."""

    def __init__(self, channel: grpc.aio.Channel, run_id: str) -> None:
        self._channel = channel
        self._run_id = run_id
        self._actor_id = f"client-{uuid.uuid4().hex[:12]}"
        self._sequences = itertools.count(1)
        self._rows: list[_Row] = []
        self._earned, self._length = 0.0, 0
        self._episodes: list[Episode] = []
        self._known: tuple[str, StepShapes] | None = None
        # Steps have an order.
        self._turn = asyncio.Lock()

    async def add(self, steps: Iterable[Any], *, seconds: float) -> UploadedExperience:
        """Uploads every full trajectory; raises the learner's reason when one is refused, and drops that one. One call
        at a time; another waits."""
        async with self._turn:
            return await self._add(steps, seconds)

    async def _add(self, steps: Iterable[Any], seconds: float) -> UploadedExperience:
        given = [step_of(index, step) for index, step in enumerate(steps)]
        if len(self._rows) + len(given) > _MOST_WAITING:
            raise InvalidInput(f"more than {_MOST_WAITING:,} steps wait for a trajectory", reason="TOO_MANY")
        training = await self._training(seconds)
        # All before the first is kept: a step that is refused later would be among those of the next call.
        shapes = await self._shapes(training, seconds)
        for index, step in enumerate(given):
            shapes.check(index, step)
        for step in given:
            self._keep(step)
        settings = struct_from_proto(training.configuration)
        length, width = int(settings["trajectory_steps"]), int(settings["num_envs"])
        version, accepted = training.progress.policy_version, 0
        while len(self._rows) >= length * width:
            taken, self._rows = self._rows[: length * width], self._rows[length * width :]
            fragment = Fragment(_columns(taken, length, width), self._episodes)
            self._episodes = []
            version = await self._accepted(fragment, training, version, seconds, off_policy=shapes.off_policy)
            accepted += 1
        return UploadedExperience(accepted, sum(row.valid for row in self._rows), version)

    def _keep(self, step: Step) -> None:
        if (
            self._rows
            and self._rows[-1].valid
            and not np.array_equal(self._rows[-1].step.next_observation, step.observation)
        ):
            self._rows[-1] = _Row(self._rows[-1].step._replace(truncated=True), valid=True)
            self._end()
        self._rows.append(_Row(step, valid=True))
        self._earned, self._length = self._earned + step.reward, self._length + 1
        if step.terminated or step.truncated:
            self._end()

    def _end(self) -> None:
        """Ends the episode; the row after it only resets and does not count."""
        last = self._rows[-1].step
        reset = last._replace(observation=last.next_observation, reward=0.0, terminated=False, truncated=False)
        self._rows.append(_Row(reset, valid=False))
        self._episodes.append(Episode(self._earned, self._length))
        self._earned, self._length = 0.0, 0

    async def _training(self, seconds: float) -> training_service_pb2.Training:
        request = training_service_pb2.GetTrainingRequest(run_id=self._run_id)
        try:
            answer = await TrainingServiceStub(self._channel).GetTraining(request, timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        if not answer.training.run_uid:
            raise FailedPrecondition(f"run {answer.training.run_id!r} has not started", reason="NOT_STARTED")
        return answer.training

    async def _shapes(self, training: training_service_pb2.Training, seconds: float) -> StepShapes:
        """Read from the run's policy, once per run."""
        if self._known is None or self._known[0] != training.run_uid:
            request = policy_pb.GetPolicyRequest(run_id=training.run_id, encoding=policy_pb.POLICY_ENCODING_SAFETENSORS)
            call = PolicyServiceStub(self._channel).GetPolicy(request, timeout=seconds)
            try:
                blob = b"".join([part.data async for part in call])
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
            self._known = training.run_uid, shapes_in(blob)
        return self._known[1]

    async def _accepted(
        self,
        fragment: Fragment,
        training: training_service_pb2.Training,
        version: int,
        seconds: float,
        *,
        off_policy: bool,
    ) -> int:
        """Uploads a trajectory; where any policy's steps are good enough, again if the run went on meanwhile."""
        for _ in range(_TRIES if off_policy else 1):
            try:
                return await self._upload(fragment, training, version, seconds)
            except FleetError as error:
                if error.reason != "POLICY_LAG":
                    raise
                refusal = error
            version = (await self._training(seconds)).progress.policy_version
        raise refusal

    async def _upload(
        self, fragment: Fragment, training: training_service_pb2.Training, version: int, seconds: float
    ) -> int:
        message = trajectory_to_proto(
            fragment,
            run_id=training.run_id,
            run_uid=training.run_uid,
            actor_id=self._actor_id,
            incarnation=1,
            sequence=next(self._sequences),
            policy_version=version,
        )
        call = ExperienceServiceStub(self._channel).UploadTrajectories(timeout=seconds)
        try:
            await call.write(pb.UploadTrajectoriesRequest(trajectory=message))
            await call.done_writing()
            receipt = await call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error) from error
        finally:
            call.cancel()
        if not isinstance(receipt, pb.UploadTrajectoriesResponse):
            raise Unavailable("the learner ended the stream without a receipt")
        if receipt.status.code:
            raise error_from_status(receipt.status)
        return int(receipt.policy_version)


def _columns(rows: list[_Row], length: int, width: int) -> dict[str, Array]:
    """Consecutive stretches side by side; the last row of observations follows each stretch's last step."""

    def column(values: list[Any], dtype: str | None = None) -> Array:
        found = _narrow(np.asarray(values), dtype)
        return np.ascontiguousarray(found.reshape(width, length, *found.shape[1:]).swapaxes(0, 1))

    steps = [row.step for row in rows]
    seen = column([step.observation for step in steps])
    following = _narrow(np.asarray([step.next_observation for step in steps[length - 1 :: length]]), None)
    return {
        OBSERVATION: np.concatenate((seen, following[None].astype(seen.dtype))),
        ACTION: column([step.action for step in steps]),
        LOG_PROB: column([step.log_prob for step in steps], "float32"),
        REWARD: column([step.reward for step in steps], "float32"),
        TERMINATED: column([step.terminated for step in steps], "bool"),
        TRUNCATED: column([step.truncated for step in steps], "bool"),
        VALID: column([row.valid for row in rows], "bool"),
    }


def _narrow(values: Array, dtype: str | None) -> Array:
    """Converts to the types of collectors: int64, float32 and bool; unsigned integers keep theirs."""
    if dtype is None:
        dtype = {"f": "float32", "i": "int64", "u": str(values.dtype), "b": "bool"}.get(values.dtype.kind, "float32")
    return values.astype(dtype, copy=False)
