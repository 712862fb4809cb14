"""A program's own experience: steps it took itself, uploaded to a run as whole trajectories."""

import itertools
import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc.aio
import numpy as np

from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable
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

_MOST_WAITING = 1_000_000
_OFF_POLICY = ("dqn", "sac", "td3", "q_learning")
_TRIES = 10
_FEWEST = 5
"""Fields of a step without a default."""


class Step(NamedTuple):
    """One step of one environment. The action is the policy's, before it is scaled or squashed to the environment's
    bounds; only PPO needs `log_prob`."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    terminated: bool
    truncated: bool = False
    log_prob: float = 0.0


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
        self._known: tuple[str, _Shapes] | None = None

    async def add(self, steps: Iterable[Any], *, seconds: float) -> UploadedExperience:
        """Uploads every full trajectory; raises the learner's reason when one is refused, and drops that one."""
        given = [_step(index, step) for index, step in enumerate(steps)]
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
            version = await self._sent(fragment, training, version, seconds)
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

    async def _shapes(self, training: training_service_pb2.Training, seconds: float) -> "_Shapes":
        """Read from the run's policy, once per run."""
        if self._known is None or self._known[0] != training.run_uid:
            request = policy_pb.GetPolicyRequest(run_id=training.run_id, encoding=policy_pb.POLICY_ENCODING_SAFETENSORS)
            call = PolicyServiceStub(self._channel).GetPolicy(request, timeout=seconds)
            try:
                blob = b"".join([part.data async for part in call])
            except grpc.aio.AioRpcError as error:
                raise error_from_rpc(error) from error
            self._known = training.run_uid, _shapes_in(blob)
        return self._known[1]

    async def _sent(
        self, fragment: Fragment, training: training_service_pb2.Training, version: int, seconds: float
    ) -> int:
        """Uploads it; steps that no version took count as the newest one's, however fast the run trains."""
        takes_any = str(struct_from_proto(training.configuration).get("algorithm")) in _OFF_POLICY
        for _ in range(_TRIES):
            try:
                return await self._upload(fragment, training, version, seconds)
            except FailedPrecondition as error:
                newest = int(error.metadata.get("newest", 0))
                if error.reason != "POLICY_LAG" or not takes_any or newest <= version:
                    raise
                version, last = newest, error
        raise last

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


def check_steps(given: object) -> None:
    """InvalidInput for what is no collection of steps, such as a number or a single step."""
    if isinstance(given, Step) or not isinstance(given, Iterable):
        raise InvalidInput(f"experiences is {given!r:.60}; it must be a list of steps", reason="INVALID_STEP")


class _Shapes(NamedTuple):
    """What the run's policy observes and does."""

    observation: tuple[int, ...]
    states: int
    action: tuple[int, ...]
    choices: tuple[int, ...]
    """Of every entry of the action; empty for continuous actions."""

    def check(self, index: int, step: Step) -> None:
        """Raises InvalidInput for a step that cannot be one of the run's."""
        for name in ("observation", "next_observation"):
            _check_shape(index, name, getattr(step, name), self.observation)
            if self.states:
                _check_choice(index, name, getattr(step, name), (self.states,))
        _check_shape(index, "action", step.action, self.action)
        if self.choices:
            _check_choice(index, "action", step.action, self.choices)


def _shapes_in(policy: bytes) -> _Shapes:
    """Read from the header of the safetensors file."""
    header = json.loads(policy[8 : 8 + int.from_bytes(policy[:8], "little")])
    spec = json.loads(header["__metadata__"]["policy"])
    states, action = int(spec.get("observation_states", 0)), spec["action"]
    choices = tuple(action.get("sizes") or ())
    shape = () if action["kind"] == "discrete" else (len(choices) or len(action["low"]),)
    return _Shapes(() if states else tuple(spec["observation_shape"]), states, shape, choices)


def _check_shape(index: int, name: str, value: Any, wanted: tuple[int, ...]) -> None:
    if np.shape(value) != wanted:
        raise InvalidInput(
            f"step {index}: {name} has the shape {np.shape(value)}; the run's policy has {wanted}", reason="SHAPE"
        )


def _check_choice(index: int, name: str, value: Any, sizes: tuple[int, ...]) -> None:
    given = np.asarray(value)
    if given.dtype.kind not in "biu" or not ((given >= 0) & (given < np.array(sizes).reshape(given.shape))).all():
        allowed = " and ".join(f"0..{size - 1}" for size in sizes)
        raise InvalidInput(f"step {index}: {name} is {given.tolist()!r:.60}; it must be {allowed}", reason="CHOICE")


def _step(index: int, given: Any) -> Step:
    """The step, if it is one by itself; raises InvalidInput that names its index and field."""
    if not isinstance(given, (tuple, list)) or not _FEWEST <= len(given) <= len(Step._fields):
        raise InvalidInput(
            f"step {index} is {given!r:.60}; it must be a Step, or a tuple of {', '.join(Step._fields)}",
            reason="INVALID_STEP",
        )
    step = given if isinstance(given, Step) else Step(*given)
    for name in ("observation", "action", "reward", "next_observation", "log_prob"):
        try:
            finite = np.isfinite(np.asarray(getattr(step, name), np.float64)).all()
        except (TypeError, ValueError):
            said = f"step {index}: {name} is {getattr(step, name)!r:.60}; it must be a number or an array of numbers"
            raise InvalidInput(said, reason="INVALID_STEP") from None
        if not finite:
            raise InvalidInput(f"step {index}: {name} is not finite", reason="NOT_FINITE")
    for name in ("reward", "log_prob"):
        if np.ndim(getattr(step, name)):
            raise InvalidInput(f"step {index}: {name} must be one number", reason="INVALID_STEP")
    return step._replace(
        reward=float(step.reward),
        terminated=bool(step.terminated),
        truncated=bool(step.truncated),
        log_prob=float(step.log_prob),
    )


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
