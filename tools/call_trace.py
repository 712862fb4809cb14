"""Records which functions of this repository are called, and which files a followed thing passes through."""

import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

from google.protobuf.message import Message

ROOT = Path(__file__).resolve().parents[1]
_OWN_TOPS = ("parlmesh", "scheduler", "actor", "learner")
_SERVICES = {"parlmesh/client/": "client", "scheduler/": "scheduler", "actor/": "actor"}
# The actor's messages arrive here: from this point a task returns.
_RETURN = "scheduler/wire/fleet_servicer.py"
# Changes to a task because time passes are not part of its walk.
_TIME = "Core.tick"
# Constructors of records are left out.
_CONSTRUCTORS = ("__init__", "of")
_DEPTH = 5
_LARGEST_RECORD = 40


class Trail(Protocol):
    """The object that is followed."""

    elsewhere: str
    """A folder that is part of another walk."""

    def stay(self, frame: FrameType, event: str, answer: object) -> str:
        """Where it is, if this call receives it or this return answers with it; empty otherwise."""


class Trace:
    """The functions of this repository that are called while it is on, in order and in every thread."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.trail: Trail | None = None
        self.stays: dict[str, dict[str, str]] = {}
        """The files that the followed thing entered, stay by stay, each with one of its functions."""
        self._on = False
        self._busy = threading.local()
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Starts a new recording."""
        self.calls, self.stays, self._on = [], {}, True
        try:
            yield
        finally:
            self._on = False

    def _hook(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._on or event not in ("call", "return") or not (file := own_file(frame)):
            return
        if event == "call":
            self.calls.append(f"{file} {frame.f_code.co_qualname}")
        if self.trail is not None and not getattr(self._busy, "now", False):
            # The trail calls functions too.
            self._busy.now = True
            try:
                if stay := self.trail.stay(frame, event, argument):
                    self._enter(frame, stay, self.trail.elsewhere)
            finally:
                self._busy.now = False

    def _enter(self, frame: FrameType, stay: str, elsewhere: str) -> None:
        """Counts the file, and the file that called it and so had the thing before, once in each stay."""
        # A comprehension in a constructor is a part of it.
        function = frame.f_code.co_qualname.split(".<locals>")[0]
        if function.rsplit(".", 1)[-1] in _CONSTRUCTORS:
            return
        files = self.stays.setdefault(stay, {})
        for each, file in [*stack(frame)][1::-1]:
            if not file.startswith(elsewhere):
                files.setdefault(file, each.f_code.co_qualname)


class TaskTrail:
    """A task, recognised by marks that only its payload or id has: out by client, scheduler and actor, and back."""

    elsewhere = "-"

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self._returns = False

    def stay(self, frame: FrameType, event: str, answer: object) -> str:
        """The service, and whether the task is returning."""
        if not holds(arguments(frame) if event == "call" else answer, self._marks):
            return ""
        chain = [(file, each.f_code.co_qualname) for each, file in stack(frame)]
        service = next((name for file, _ in chain for top, name in _SERVICES.items() if file.startswith(top)), "")
        if not service or any(name.endswith(_TIME) for _, name in chain):
            return ""
        self._returns = self._returns or any(file == _RETURN for file, _ in chain)
        return f"{service}, on the way back" if self._returns else service


def holds(value: object, marks: Sequence[str], samples: Sequence[bytes] = (), depth: int = _DEPTH) -> bool:
    """Whether a value has a mark, or is a record of one that has; services, which keep many records, do not count."""
    if isinstance(value, str):
        return any(mark in value for mark in marks)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        return any(mark.encode() in data for mark in marks) or any(sample in data for sample in samples)
    if not depth or isinstance(value, int | float | type(None)):
        return False
    if isinstance(value, Message):
        return holds(value.SerializeToString(), marks, samples)
    if isinstance(value, dict):
        return any(holds(each, marks, samples, depth - 1) for pair in [*value.items()][:20] for each in pair)
    if isinstance(value, tuple | list | set | deque):
        return any(holds(each, marks, samples, depth - 1) for each in [*value][:20])
    if type(value).__module__.split(".")[0] not in _OWN_TOPS or hasattr(value, "__aenter__"):
        return False
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = [getattr(value, name, None) for name in slots] + [*getattr(value, "__dict__", {}).values()]
    return len(fields) <= _LARGEST_RECORD and any(holds(each, marks, samples, min(1, depth - 1)) for each in fields)


def stack(frame: FrameType | None) -> Iterator[tuple[FrameType, str]]:
    """The frames of this repository from this one outwards, with their files."""
    while frame is not None:
        if file := own_file(frame):
            yield frame, file
        frame = frame.f_back


def own_file(frame: FrameType) -> str:
    """The file of a frame if it belongs to this repository and is not generated; empty otherwise."""
    file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
    return file if file.split("/")[0] in _OWN_TOPS and "/v1/" not in file else ""


def arguments(frame: FrameType) -> list[object]:
    """The arguments of a call."""
    code = frame.f_code
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [frame.f_locals[name] for name in named if name not in ("self", "cls") and name in frame.f_locals]
