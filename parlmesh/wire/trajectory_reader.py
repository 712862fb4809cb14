"""Reads one sender's trajectories. All look alike, so the known parts of the last ones are compared and not parsed."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from parlmesh.types import Array, Trajectory
from parlmesh.v1 import experience_service_pb2 as pb

from .fields import field_head, read_varint
from .tensors import DEFAULT_LIMITS, TensorLimits
from .trajectories import (
    COLUMNS,
    TOGETHER,
    TRAJECTORY,
    ReceivedTrajectory,
    trajectory_from_proto,
    trajectory_from_request,
)

# The padding of columns depends on the length of the bytes before them, so one shape of trajectory has eight layouts.
_ALIGNMENT = 8
_LAYOUTS_KEPT = 2 * _ALIGNMENT
_LONGEST_FRAME = 4096
_GROUP = 3
_TAG = field_head(TRAJECTORY, 0)[0]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a trajectory, which are the end of its message: everything but their elements."""

    size: int
    phase: int
    """Where the first column starts, modulo the alignment: all elements are aligned there."""
    frame: tuple[tuple[int, int, bytes], ...]
    """Start, end and bytes of all parts that are not elements, relative to the first column."""
    columns: tuple[tuple[str, np.dtype, tuple[int, ...], int], ...]
    """Name, element type, shape and start of the elements of each."""


class TrajectoryReader:
    """The inverse of `trajectory_to_request` for the requests of one stream, with the same checks as
    `trajectory_from_request` and `trajectory_from_proto`."""

    def __init__(self, limits: TensorLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._layouts: deque[_Layout] = deque(maxlen=_LAYOUTS_KEPT)

    def request(self, request: bytes) -> ReceivedTrajectory:
        """Raises InvalidInput or DecodeError if the bytes are no message."""
        return self._known(request) or trajectory_from_request(request)

    def trajectory(self, received: ReceivedTrajectory, node_id: str = "") -> Trajectory:
        """Raises the first reason against it; `node_id` is the sender's node, if proven."""
        trajectory = trajectory_from_proto(received.message, self._limits, node_id, received.columns, received.arrays)
        if received.arrays is None and received.columns:
            layout = _layout_of(received.columns, trajectory.fragment.columns)
            if layout is not None:
                self._layouts.appendleft(layout)
        return trajectory

    def _known(self, request: bytes) -> ReceivedTrajectory | None:
        """The request if it has exactly a known layout: the columns need no further check then."""
        if not self._layouts or not request or request[0] != _TAG:
            return None
        try:
            length, begin = read_varint(request, 1)
        except ValueError:
            return None
        end = begin + length
        rest = request[end:]
        if end > len(request) or rest not in (TOGETHER, b""):
            return None
        for layout in self._layouts:
            start = end - layout.size
            if start < begin or start % _ALIGNMENT != layout.phase:
                continue
            for first, last, expected in layout.frame:
                if request[start + first : start + last] != expected:
                    break
            else:
                return _received(request, begin, start, layout, together=bool(rest))
        return None


def _received(request: bytes, begin: int, start: int, layout: _Layout, *, together: bool) -> ReceivedTrajectory | None:
    # A message that can be parsed ends with a whole field, so the columns start where they seem to.
    try:
        message = pb.Trajectory.FromString(request[begin:start])
    except DecodeError:
        return None
    if message.columns:
        return None
    unknown: Any = UnknownFieldSet(message)
    for field in unknown:
        # Protobuf skips one; a full parse refuses it.
        if field.wire_type == _GROUP:
            return None
    arrays = {name: np.ndarray(shape, dtype, request, start + first) for name, dtype, shape, first in layout.columns}
    return ReceivedTrajectory(message, [], together, arrays)


def _layout_of(views: Sequence[memoryview], arrays: Mapping[str, Array]) -> _Layout | None:
    """The layout of columns that passed the checks; None if the message was not written as we write it."""
    message: Any = views[0].obj
    base, first = _address(message), _address(views[0])
    begin = first - base - len(field_head(COLUMNS, len(views[0])))
    data = memoryview(message)
    position = known = begin
    frame: list[tuple[int, int, bytes]] = []
    columns: list[tuple[str, np.dtype, tuple[int, ...], int]] = []
    for view, (name, array) in zip(views, arrays.items(), strict=True):
        head = field_head(COLUMNS, len(view))
        start, end = position + len(head), position + len(head) + len(view)
        elements = array.__array_interface__["data"][0] - base
        # Elements that were not aligned were copied, and lie elsewhere.
        inside = array.nbytes > 0 and start <= elements and elements + array.nbytes <= end
        if not inside or _address(view) - base != start or data[position:start] != head:
            return None
        frame.append((known - begin, elements - begin, bytes(data[known:elements])))
        columns.append((name, array.dtype, array.shape, elements - begin))
        known, position = elements + array.nbytes, end
    frame.append((known - begin, position - begin, bytes(data[known:position])))
    if sum(len(each) for _, _, each in frame) > _LONGEST_FRAME:
        return None
    return _Layout(position - begin, begin % _ALIGNMENT, tuple(frame), tuple(columns))


def _address(buffer: bytes | memoryview) -> int:
    address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
    return address
