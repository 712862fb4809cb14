"""What `tools/walk.py` counts."""

import sys
import threading
from types import FrameType
from typing import Any

import pytest

from tools.call_trace import ROOT, Trace

SOURCE = """
class Record:
    @classmethod
    def of(cls, things):
        return [seen() for _ in things]

def use(things):
    return [seen() for _ in things]
"""


@pytest.mark.parametrize(("call", "entered"), [("Record.of([1])", {}), ("use([1])", {"learner/made.py": "use"})])
def test_constructors_of_records_are_left_out_with_their_comprehensions(
    monkeypatch: pytest.MonkeyPatch, call: str, entered: dict[str, str]
) -> None:
    for module in (sys, threading):
        monkeypatch.setattr(module, "setprofile", lambda hook: None)
    trace, names = Trace(), dict[str, Any]()

    def seen() -> None:
        comprehension: FrameType | None = sys._getframe(1)
        assert comprehension is not None
        trace._enter(comprehension, "learner", "-")

    names["seen"] = seen
    exec(compile(SOURCE, f"{ROOT}/learner/made.py", "exec"), names)
    exec(call, names)
    assert trace.stays.get("learner", {}) == entered
