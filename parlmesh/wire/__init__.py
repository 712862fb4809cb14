"""Translates between our types and the wire: `x_to_proto` and `x_from_proto`, nothing else. Sizes are checked first."""

from .fields import field_head, take_out
from .payloads import payload_from_proto, payload_to_proto, struct_from_proto, struct_to_proto
from .tensors import TensorLimits, tensor_from_proto, tensor_to_proto, tensors_from_proto
from .trajectories import (
    EncodedTrajectory,
    ReceivedTrajectory,
    trajectory_from_proto,
    trajectory_from_request,
    trajectory_to_proto,
    trajectory_to_request,
)
from .trajectory_reader import TrajectoryReader

__all__ = [
    "EncodedTrajectory",
    "ReceivedTrajectory",
    "TensorLimits",
    "TrajectoryReader",
    "field_head",
    "payload_from_proto",
    "payload_to_proto",
    "struct_from_proto",
    "struct_to_proto",
    "take_out",
    "tensor_from_proto",
    "tensor_to_proto",
    "tensors_from_proto",
    "trajectory_from_proto",
    "trajectory_from_request",
    "trajectory_to_proto",
    "trajectory_to_request",
]
