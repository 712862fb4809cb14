"""The child's own end: its reader thread always waits, and an interpreter that shuts down around it would abort."""

import os
import subprocess
import sys
from pathlib import Path

from actor.session.slot_child import frame
from parlmesh.v1.fleet_service_pb2 import Assignment, Lease

SECONDS = 60.0
_HANDLERS = """
class Answers:
    kind = "answers"
    runs_in = "process"
    def run(self, parameters, tensors, context):
        return {}
"""


def child(folder: Path, source: str, answers: int = subprocess.PIPE) -> "subprocess.Popen[bytes]":
    (folder / "child_handlers.py").write_text(_HANDLERS)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.Popen(
        [sys.executable, "-m", "actor.session.slot_child", source, "actor", "0"],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=answers,
        stderr=subprocess.PIPE,
    )


def test_a_child_whose_actor_died_before_the_answer_ends_quietly(tmp_path: Path) -> None:
    nobody, answers = os.pipe()
    os.close(nobody)
    with child(tmp_path, "child_handlers:Answers", answers) as process:
        os.close(answers)
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(frame(Assignment(lease=Lease(task_id="t", lease_id=1, attempt=1)).SerializeToString()))
        process.stdin.flush()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS) == 0


def test_a_child_that_does_not_find_its_handler_says_so_and_ends_with_an_error(tmp_path: Path) -> None:
    with child(tmp_path, "child_handlers:Missing") as process:
        assert process.stderr is not None
        told = process.stderr.read().decode()
        assert process.wait(SECONDS) == 1
    assert "Missing" in told
    assert "Fatal Python error" not in told
