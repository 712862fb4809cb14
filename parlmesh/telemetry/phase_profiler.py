"""Where a process's time goes, by phase: its threads are looked at many times a second. Costs nothing when it is off.

A phase is named by the function a thread is in, the innermost that has a name. For each the time that passed and the
processor time are kept apart: what passes without using the processor is waiting.
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
    """How the functions and threads of a service are called."""

    functions: Mapping[str, str]
    """Phase by "module.function", the module without its package."""
    threads: Mapping[str, str]
    """Role by the beginning of a thread's name; other threads are left out."""
    work: Collection[str]
    """Only what lies between the first and the last look at one of these phases counts: not the start, not the end."""


class Profiler:
    """Looks until it is stopped."""

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
        """Begins to look."""
        self._thread.start()

    def stop(self) -> list[dict[str, str | float]]:
        """Ends; one row per thread's role and phase, longest first within a role."""
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
        """Notes what every thread is doing; the processor time of all of them."""
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
            # The thread has just ended, or the system does not tell.
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
    """Writes where the time of the block went as JSON; does nothing without a file."""
    if file is None:
        yield
        return
    profiler = Profiler(phases)
    profiler.start()
    try:
        yield
    finally:
        file.write_text(json.dumps(profiler.stop()))
