"""Trajectories, to and from protobuf. The learner decides whether the columns fit a run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.types import Array, Episode, EpisodeColumns, Fragment, Trajectory
from parlmesh.v1 import experience_service_pb2 as pb

from .fields import field_head, take_out
from .tensors import (
    DEFAULT_LIMITS,
    TensorLimits,
    tensor_from_proto,
    tensor_to_parts,
    tensor_to_proto,
    tensors_from_bytes,
    tensors_from_proto,
)

_MAX_EPISODES = 100_000
_MAX_INCARNATION = (1 << 63) - 1
_LONGEST_SECONDS = 1e7
TRAJECTORY = pb.UploadTrajectoriesRequest.DESCRIPTOR.fields_by_name["trajectory"].number
# A sender that encodes by hand can also read receipts that come together.
TOGETHER = pb.UploadTrajectoriesRequest(receipts_together=True).SerializeToString()
COLUMNS = pb.Trajectory.DESCRIPTOR.fields_by_name["columns"].number


@dataclass(frozen=True, slots=True)
class EncodedTrajectory:
    """A trajectory to be uploaded: its number and the serialised UploadTrajectoriesRequest."""

    sequence: int
    request: bytes


@dataclass(frozen=True, slots=True)
class ReceivedTrajectory:
    """An UploadTrajectoriesRequest as it came: parsed except for the columns, which are views of its bytes."""

    message: pb.Trajectory
    columns: list[memoryview]
    receipts_together: bool
    arrays: Mapping[str, Array] | None = None
    """The columns instead, if they were checked before."""


def trajectory_from_request(request: bytes) -> ReceivedTrajectory:
    """The inverse of `trajectory_to_request`, for any client's bytes; raises InvalidInput if they are no message."""
    rest, found = take_out(request, TRAJECTORY)
    # Protobuf merges repeats of this field. No sender uses them, so that case is left to protobuf.
    whole = (
        found[0] if len(found) == 1 else pb.UploadTrajectoriesRequest.FromString(request).trajectory.SerializeToString()
    )
    head, columns = take_out(whole, COLUMNS)
    together = pb.UploadTrajectoriesRequest.FromString(rest).receipts_together
    return ReceivedTrajectory(pb.Trajectory.FromString(head), columns, together)


def trajectory_to_proto(
    fragment: Fragment,
    *,
    run_id: str,
    actor_id: str,
    incarnation: int,
    sequence: int,
    policy_version: int,
    task_id: str = "",
    run_uid: str = "",
) -> pb.Trajectory:
    """The message of one upload."""
    episodes = EpisodeColumns.of(fragment.episodes)
    return pb.Trajectory(
        run_id=run_id,
        actor_id=actor_id,
        incarnation=incarnation,
        sequence=sequence,
        policy_version=policy_version,
        task_id=task_id,
        run_uid=run_uid,
        columns=[tensor_to_proto(name, column) for name, column in fragment.columns.items()],
        episode_returns=tensor_to_proto("episode_returns", episodes.returns) if episodes else None,
        episode_steps=tensor_to_proto("episode_steps", episodes.steps) if episodes else None,
    )


def trajectory_to_request(trajectory: Trajectory) -> EncodedTrajectory:
    """The request, serialised: every column is copied once, while nested messages would copy it four times."""
    message = trajectory_to_proto(
        Fragment({}, trajectory.fragment.episodes),
        run_id=trajectory.run_id,
        actor_id=trajectory.actor_id,
        incarnation=trajectory.incarnation,
        sequence=trajectory.sequence,
        policy_version=trajectory.policy_version,
        task_id=trajectory.task_id,
        run_uid=trajectory.run_uid,
    )
    message.collect_seconds, message.waited_seconds = trajectory.collect_seconds, trajectory.waited_seconds
    if trajectory.collect_time:
        fraction, seconds = math.modf(trajectory.collect_time)
        message.collect_time.seconds, message.collect_time.nanos = int(seconds), int(fraction * 1e9)
    head = message.SerializeToString()
    columns = trajectory.fragment.columns
    # If the length takes another number of bytes in the end, only the alignment is lost.
    begin = len(field_head(TRAJECTORY, len(head) + sum(column.nbytes for column in columns.values())))
    parts: list[bytes | memoryview] = [head]
    length = len(head)
    for name, column in columns.items():
        tensor = tensor_to_parts(COLUMNS, name, column, begin + length)
        parts += tensor
        length += len(tensor[0]) + len(tensor[1])
    request = b"".join([field_head(TRAJECTORY, length), *parts, TOGETHER])
    return EncodedTrajectory(trajectory.sequence, request)


def trajectory_from_proto(
    message: pb.Trajectory,
    limits: TensorLimits = DEFAULT_LIMITS,
    node_id: str = "",
    columns: Sequence[memoryview] = (),
    arrays: Mapping[str, Array] | None = None,
) -> Trajectory:
    """Columns are read-only views of the message, or of `columns`, or checked `arrays`. `node_id` is the sender's node,
    if proven."""
    if not message.actor_id:
        raise InvalidInput("trajectory has no actor_id", reason="TRAJECTORY_ORIGIN")
    if message.sequence == 0:
        raise InvalidInput("trajectory sequence must be >= 1, got 0", reason="TRAJECTORY_ORIGIN")
    if message.incarnation > _MAX_INCARNATION:
        text = f"trajectory incarnation must be < 2^63, got {message.incarnation}"
        raise InvalidInput(text, reason="TRAJECTORY_ORIGIN")
    for name, seconds in (("collect", message.collect_seconds), ("waited", message.waited_seconds)):
        if not 0.0 <= seconds <= _LONGEST_SECONDS:
            text = f"trajectory {name}_seconds must lie in 0..{_LONGEST_SECONDS:g}, got {seconds}"
            raise InvalidInput(text, reason="TIMING")
    if arrays is None:
        arrays = tensors_from_bytes(columns, limits) if columns else tensors_from_proto(message.columns, limits)
    return Trajectory(
        run_id=message.run_id,
        actor_id=message.actor_id,
        incarnation=message.incarnation,
        sequence=message.sequence,
        policy_version=message.policy_version,
        task_id=message.task_id,
        collect_time=message.collect_time.seconds + message.collect_time.nanos / 1e9,
        collect_seconds=message.collect_seconds,
        waited_seconds=message.waited_seconds,
        run_uid=message.run_uid,
        node_id=node_id,
        fragment=Fragment(
            columns=arrays,
            episodes=_episodes(message, limits),
        ),
    )


def _episodes(message: pb.Trajectory, limits: TensorLimits) -> Sequence[Episode]:
    if len(message.episodes) > _MAX_EPISODES:
        raise _too_many(len(message.episodes))
    if not message.HasField("episode_returns"):
        return [Episode(each.total_reward, each.steps) for each in message.episodes]
    if message.episodes:
        raise InvalidInput("trajectory has both episodes and episode_returns; use either", reason="EPISODES")
    returns = tensor_from_proto(message.episode_returns, limits)
    steps = tensor_from_proto(message.episode_steps, limits)
    for name, column, dtype in (("episode_returns", returns, np.float32), ("episode_steps", steps, np.int64)):
        if column.dtype != dtype or column.ndim != 1:
            found = f"{column.dtype}{list(column.shape)}"
            raise InvalidInput(f"{name} must be {np.dtype(dtype)}[N], got {found}", reason="EPISODES")
    if len(returns) != len(steps):
        message_text = f"trajectory has {len(returns)} episode_returns and {len(steps)} episode_steps"
        raise InvalidInput(message_text, reason="EPISODES")
    if len(returns) > _MAX_EPISODES:
        raise _too_many(len(returns))
    return EpisodeColumns(returns, steps)


def _too_many(count: int) -> ResourceExhausted:
    return ResourceExhausted(f"trajectory has {count} episodes; the limit is {_MAX_EPISODES}", reason="EPISODE_COUNT")
