"""Recognises one trajectory in calls, from the request for it to the policy that was trained on it."""

from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np
from google.protobuf.message import Message

from parlmesh.training.numpy_model import Minibatch
from parlmesh.types import OBSERVATION, EpisodeColumns, Fragment, Trajectory
from tools.call_trace import arguments, holds, stack

_ASKED = "FleetSource.request"
_NAMED = "Dispatcher.submit"
_COLLECTED = "Collector.collect"
_PACKED = "policy_blob"
_SENT = "EncodedPolicy.__iter__"
# Contained in every request for a rollout.
_REQUEST = "min_policy_version"
# Enough bytes to be found nowhere else.
_SAMPLE_BYTES = 64
_SERVICES = {
    "actor/handlers/": "actor",
    "actor/learner/": "actor",
    "learner/": "learner",
    # Runs in its own thread.
    "parlmesh/training/": "learner",
}
# The rollout is a task with its own walk: to its handler, and back with its outcome.
_OUTCOME = "Dispatcher._settle"
_PLAIN = (str, bytes, memoryview, dict, tuple, set)
_ASKING, _COLLECTING, _TRAINING = "learner, asking", "actor", "learner, training"


class TrajectoryTrail:
    """Follows the first trajectory that is requested, if there is one at a time.

    It recognises the request by its parameters, then by its id; the fragment by its bytes, its arrays, views of them
    and the minibatches cut from it; and the version that is published next by its bytes. What is computed on the way
    (values, gradients, figures) does not count.
    """

    elsewhere = "actor/session/"

    def __init__(self, on_end: Callable[[], None]) -> None:
        """`on_end` is called when the learner serves the new version."""
        self._on_end = on_end
        self._ended = False
        self._stay = ""
        self._task_id = ""
        # Some bytes of the observations and later of the policy.
        self._samples: list[bytes] = []
        self._arrays: dict[int, Any] = {}

    def stay(self, frame: FrameType, event: str, answer: object) -> str:
        """One of three: requested by the learner, collected by the actor, trained on by the learner."""
        name = frame.f_code.co_qualname
        if not self._stay and name == _ASKED and event == "call":
            self._stay = _ASKING
            return self._stay
        if self._ended or not self._stay:
            return ""
        chain = [(file, each.f_code.co_qualname) for each, file in stack(frame)]
        service = next((name for file, _ in chain for top, name in _SERVICES.items() if file.startswith(top)), "")
        if not service or any(each == _OUTCOME for _, each in chain):
            return ""
        if event == "return":
            self._learn(name, answer, packing=any(each.endswith(_PACKED) for _, each in chain))
        # In the learner it is known by the id of its task.
        marks = [] if self._samples else [_REQUEST]
        marks += [self._task_id] if self._task_id and service == "learner" else []
        if not self._is(arguments(frame) if event == "call" else answer, marks):
            return ""
        if service == "actor" and self._stay == _ASKING:
            self._stay = _COLLECTING
        elif service == "learner" and self._samples:
            self._stay = _TRAINING
        if name == _SENT and event == "return":
            self._ended = True
            self._on_end()
        return self._stay if self._stay.startswith(service) else ""

    def _learn(self, name: str, answer: object, *, packing: bool) -> None:
        """Notes how to recognise it from here on."""
        if name == _NAMED and isinstance(answer, list) and not self._task_id:
            (self._task_id,) = answer
        if name == _COLLECTED and isinstance(answer, Fragment) and not self._samples:
            self._samples.append(_sample(answer.columns[OBSERVATION].tobytes()))
        if packing and isinstance(answer, bytes) and self._stay == _TRAINING and len(self._samples) == 1:
            self._samples.append(_sample(answer))

    def _is(self, value: object, marks: list[str]) -> bool:
        if isinstance(value, list):
            # A list, not a generator: each element that is part of it must be noted.
            return any([self._is(each, marks) for each in value])
        if isinstance(value, Trajectory):
            value = value.fragment
        if isinstance(value, Minibatch) or (isinstance(value, Fragment) and self._is_sampled(value)):
            # Kept alive, so that no other array gets its id.
            self._arrays.update((id(each), each) for array in _arrays(value) for each in _owners(array))
            return True
        if any(self._knows(array) for array in _arrays(value)):
            return True
        return (isinstance(value, _PLAIN) or _is_record(value)) and holds(value, marks, self._samples)

    def _is_sampled(self, fragment: Fragment) -> bool:
        observation = fragment.columns.get(OBSERVATION)
        return bool(self._samples) and observation is not None and self._samples[0] in observation.tobytes()

    def _knows(self, array: Any) -> bool:
        return any(id(each) in self._arrays for each in _owners(array))


def _is_record(value: object) -> bool:
    """Services, which keep records, are not records."""
    return hasattr(value, "__dataclass_fields__") or isinstance(value, Message)


def _sample(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[middle : middle + _SAMPLE_BYTES]


def _owners(array: Any) -> Iterator[Any]:
    """The array and those that it is a view of."""
    while isinstance(array, np.ndarray):
        yield array
        array = array.base


def _arrays(value: object) -> Iterator[Any]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _arrays(each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _arrays(each)
    elif isinstance(value, EpisodeColumns):
        yield from (value.returns, value.steps)
    elif isinstance(value, Fragment):
        yield from (*_arrays(value.columns), *_arrays(value.episodes))
