"""Reads the logs that `parlmesh up` and similar commands leave: one file per process, including dead ones."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlmesh.harmless_text import visible, visible_lines

MOST_BYTES = 4 << 20
"""Only this much of a file's end is read, because a log may have any length."""
MOST_FILES = 400
_HEAD = ("time", "level", "service", "logger", "event", "exception")


@dataclass(frozen=True)
class LogLine:
    """One line in readable form."""

    process: str
    time: str
    level: str
    text: str
    detail: str = ""
    """The traceback, if there is one."""

    def __str__(self) -> str:
        head = f"{self.time or '–':<24} {self.process:<10} {self.level:<7} {self.text}"
        return f"{head}\n{self.detail}" if self.detail else head


@dataclass(frozen=True)
class LogFile:
    """The log of one process of one run."""

    run_id: str
    process: str
    path: Path


class LogFolder:
    """A run's folder, or a folder of runs."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def files(self) -> list[LogFile]:
        """All logs, ordered by run, the most recently written run first."""
        found = [path for pattern in ("logs/*.log", "*/logs/*.log") for path in self._root.glob(pattern)]
        runs: dict[str, float] = {}
        files = []
        for path in found:
            run_id = path.parent.parent.name or path.parent.parent.resolve().name
            runs[run_id] = max(runs.get(run_id, 0.0), path.stat().st_mtime)
            files.append(LogFile(run_id, path.stem, path))
        files.sort(key=lambda file: (-runs[file.run_id], file.run_id, file.process))
        return files[:MOST_FILES]

    def of(self, name: str) -> list[LogFile]:
        """The log of the newest process with that name, or of all processes of the run with that name."""
        files = self.files()
        by_process = [file for file in files if file.process == name]
        if by_process:
            return by_process[:1]
        return [file for file in files if file.run_id == name]

    def lines(self, *, contains: str = "", most: int = 200, files: Sequence[LogFile] | None = None) -> list[LogLine]:
        """The last lines of all logs, or of the given files, by time; only lines that contain the text."""
        chosen = self.files() if files is None else files
        found = [line for file in chosen for line in tail(file, contains=contains, most=most)]
        found.sort(key=lambda line: line.time)
        return found[-most:]


def tail(file: LogFile, *, contains: str = "", most: int = 200) -> list[LogLine]:
    """The last lines of one log; lines that are not JSON are shown unchanged."""
    with file.path.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - MOST_BYTES))
        if size > MOST_BYTES:
            log.readline()
        raw = log.read(MOST_BYTES).decode(errors="replace").splitlines()
    wanted = [line for line in raw if line.strip() and contains in line]
    return [line_of(file.process, text) for text in wanted[-most:]]


def follow(file: LogFile, offset: int) -> Iterator[tuple[LogLine, int]]:
    """Complete lines after the offset, each with the offset that follows it."""
    with file.path.open("rb") as log:
        log.seek(offset)
        for raw in log:
            if not raw.endswith(b"\n"):
                return
            offset += len(raw)
            if raw.strip():
                yield line_of(file.process, raw.decode(errors="replace").rstrip("\n")), offset


def line_of(process: str, text: str) -> LogLine:
    """Formats a JSON line readably; any other line only has unprintable characters escaped."""
    try:
        fields: Any = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or "event" not in fields:
        return LogLine(process, "", "", visible(text))
    rest = [f"{name}={_plain(value)}" for name, value in fields.items() if name not in _HEAD]
    return LogLine(
        process,
        visible(str(fields.get("time", ""))),
        visible(str(fields.get("level", ""))),
        visible(" ".join([str(fields["event"]), *rest])),
        visible_lines(str(fields.get("exception", ""))),
    )


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
