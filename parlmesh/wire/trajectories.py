"""Trajectories, in and out. Whether the columns fit a run is the learner's to decide."""

from parlmesh.errors import InvalidInput, ResourceExhausted
from parlmesh.types import Episode, Fragment, Trajectory
from parlmesh.v1 import experience_service_pb2 as pb

from .tensors import DEFAULT_LIMITS, TensorLimits, tensor_to_proto, tensors_from_proto

_MAX_EPISODES = 100_000


def trajectory_to_proto(
    fragment: Fragment,
    *,
    run_id: str,
    actor_id: str,
    incarnation: int,
    sequence: int,
    policy_version: int,
    task_id: str = "",
) -> pb.Trajectory:
    """One upload."""
    return pb.Trajectory(
        run_id=run_id,
        actor_id=actor_id,
        incarnation=incarnation,
        sequence=sequence,
        policy_version=policy_version,
        task_id=task_id,
        columns=[tensor_to_proto(name, column) for name, column in fragment.columns.items()],
        episodes=[pb.Episode(total_reward=each.total_reward, steps=each.steps) for each in fragment.episodes],
    )


def trajectory_from_proto(message: pb.Trajectory, limits: TensorLimits = DEFAULT_LIMITS) -> Trajectory:
    """Columns are read-only views of the message."""
    if not message.actor_id:
        raise InvalidInput("trajectory has no actor_id", reason="TRAJECTORY_ORIGIN")
    if message.sequence == 0:
        raise InvalidInput("trajectory sequence must be >= 1, got 0", reason="TRAJECTORY_ORIGIN")
    if len(message.episodes) > _MAX_EPISODES:
        count = len(message.episodes)
        raise ResourceExhausted(
            f"trajectory has {count} episodes; the limit is {_MAX_EPISODES}", reason="EPISODE_COUNT"
        )
    return Trajectory(
        run_id=message.run_id,
        actor_id=message.actor_id,
        incarnation=message.incarnation,
        sequence=message.sequence,
        policy_version=message.policy_version,
        task_id=message.task_id,
        fragment=Fragment(
            columns=tensors_from_proto(message.columns, limits),
            episodes=[Episode(each.total_reward, each.steps) for each in message.episodes],
        ),
    )
