import json
import threading
from pathlib import Path

from parlmesh.telemetry.phase_profiler import OTHER, Phases, Profiler, profiled
from parlmesh.testing import wait_until

HERE = Path(__file__).stem
PHASES = Phases(
    functions={f"{HERE}.{phase}": phase for phase in ("outer", "inner", "rest")},
    threads={"work": "worker"},
    work={"inner"},
)


class Worker:
    """A thread that stays in a given function."""

    def __init__(self, name="work-0"):
        self._next = threading.Semaphore(0)
        self._leave = threading.Semaphore(0)
        self._where = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def go(self, where):
        self._where = where
        self._leave.release()
        self._next.release()

    def _run(self):
        self._leave.acquire()
        while True:
            self._next.acquire()
            where = self._where
            if where is None:
                return
            where(self._leave.acquire)


def outer(wait):
    inner(wait)


def inner(wait):
    wait()


def rest(wait):
    wait()


def seen(profiler, phase):
    wait_until(lambda: profiler._spent.get(("worker", phase), None) is not None, 60.0)


def pending(profiler, phase):
    wait_until(lambda: ("worker", phase) in profiler._pending, 60.0)


def test_time_goes_to_the_innermost_phase_that_has_a_name():
    profiler, worker = Profiler(PHASES), Worker()
    profiler.start()
    worker.go(outer)
    seen(profiler, "inner")
    rows = profiler.stop()
    worker.go(None)
    assert {row["phase"] for row in rows if row["thread"] == "worker"} <= {"inner", OTHER}
    assert float(next(row for row in rows if row["phase"] == "inner")["seconds"]) > 0


def test_what_comes_before_the_first_work_and_after_the_last_does_not_count():
    profiler, worker = Profiler(PHASES), Worker()
    profiler.start()
    worker.go(rest)
    pending(profiler, "rest")
    worker.go(inner)
    seen(profiler, "inner")
    assert ("worker", "rest") not in profiler._spent
    worker.go(rest)
    pending(profiler, "rest")
    assert ("worker", "rest") not in profiler._spent
    worker.go(inner)
    seen(profiler, "rest")
    worker.go(None)
    profiler.stop()


def test_threads_without_a_role_are_left_out():
    profiler, worker, other = Profiler(PHASES), Worker(), Worker("somebody")
    profiler.start()
    other.go(rest)
    worker.go(inner)
    seen(profiler, "inner")
    rows = profiler.stop()
    worker.go(None)
    other.go(None)
    assert "rest" not in {row["phase"] for row in rows}


def test_a_block_is_profiled_into_a_file_or_not_at_all(tmp_path):
    file = tmp_path / "profile.json"
    with profiled(file, PHASES):
        pass
    assert json.loads(file.read_text()) == []
    threads = threading.active_count()
    with profiled(None, PHASES):
        assert threading.active_count() == threads
