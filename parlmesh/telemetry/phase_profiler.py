"""A sampling profiler that shows how a process spends its time, by phase. Costs nothing when it is off.

The phase of a thread is that of the innermost function on its stack that has one. Wall time and processor time are
counted separately: wall time without processor time is waiting.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

_INTERVAL_SECONDS = 0.004
OTHER = "other"
NATIVE = "gRPC threads"


@dataclass(slots=True)
class Spent:
    """Time of one phase."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Phases:
    """Names for the functions and threads of a service."""

    functions: Mapping[str, str]
    """Phase by "module.function", without the package."""
    threads: Mapping[str, str]
    """Role by prefix of the thread's name; other threads are ignored."""
    work: Collection[str]
    """Only time between the first and the last sample of one of these phases counts, not start-up and shutdown."""


class Profiler:
    """Samples until it is stopped."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._named: dict[CodeType, str | None] = {}
        self._cpu: dict[int, float] = {}
        self._pending: dict[tuple[str, str], Spent] = defaultdict(Spent)
        self._spent: dict[tuple[str, str], Spent] = defaultdict(Spent)
        self._begun = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="profiler", daemon=True)

    def start(self) -> None:
        """Starts sampling."""
        self._thread.start()

    def stop(self) -> list[dict[str, str | float]]:
        """Stops sampling; returns one row per role and phase, longest first within a role."""
        self._stop.set()
        self._thread.join(timeout=5.0)
        rows: list[dict[str, str | float]] = [
            {"thread": role, "phase": phase, "seconds": spent.seconds, "cpu_seconds": spent.cpu_seconds}
            for (role, phase), spent in self._spent.items()
        ]
        return sorted(rows, key=lambda row: (row["thread"], -float(row["seconds"])))

    def _run(self) -> None:
        last, process = time.perf_counter(), time.process_time()
        while not self._stop.wait(_INTERVAL_SECONDS):
            now, used = time.perf_counter(), time.process_time()
            known = self._look(now - last)
            native = self._pending[NATIVE, "transport"]
            native.seconds += now - last
            native.cpu_seconds += max(0.0, used - process - known)
            last, process = now, used
            self._settle()

    def _look(self, span: float) -> float:
        """Samples every thread; returns their processor time in total."""
        frames, total = sys._current_frames(), 0.0
        for thread in threading.enumerate():
            ident = thread.ident
            if ident is None:
                continue
            used = self._used(ident)
            total += used
            role = next((role for name, role in self._phases.threads.items() if thread.name.startswith(name)), None)
            if role is None:
                continue
            phase = self._phase(frames.get(ident))
            spent = self._pending[role, phase]
            spent.seconds += span
            spent.cpu_seconds += used
        return total

    def _settle(self) -> None:
        if any(phase in self._phases.work for _, phase in self._pending):
            if self._begun:
                for key, spent in self._pending.items():
                    self._spent[key].seconds += spent.seconds
                    self._spent[key].cpu_seconds += spent.cpu_seconds
            self._begun = True
            self._pending.clear()

    def _used(self, ident: int) -> float:
        try:
            now = time.clock_gettime(time.pthread_getcpuclockid(ident))
        except (OSError, AttributeError):
            # The thread has just ended, or the system does not report it.
            return 0.0
        before = self._cpu.get(ident, now)
        self._cpu[ident] = now
        return max(0.0, now - before)

    def _phase(self, frame: FrameType | None) -> str:
        while frame is not None:
            code = frame.f_code
            if code not in self._named:
                self._named[code] = self._phases.functions.get(f"{Path(code.co_filename).stem}.{code.co_name}")
            phase = self._named[code]
            if phase is not None:
                return phase
            frame = frame.f_back
        return OTHER


@contextmanager
def profiled(file: Path | None, phases: Phases) -> Iterator[None]:
    """Profiles the block and writes the result as JSON; does nothing without a file."""
    if file is None:
        yield
        return
    profiler = Profiler(phases)
    profiler.start()
    try:
        yield
    finally:
        file.write_text(json.dumps(profiler.stop()))
