"""The keeper of one process of a fleet, which Ray places. Ray's own API stays in `fleet`.

When a node is lost, Ray recreates the keeper elsewhere with only its constructor. So everything starts there, and the
keeper looks up the other parts' addresses repeatedly.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlmesh.processes import merged, service_command, write_settings
from parlmesh.processes.child_process import (
    describe_end,
    kill_session,
    last_words,
    log_size,
    serving_port,
    spawn,
    terminate,
)
from parlmesh.processes.process_exit import Process

_LOOK_SECONDS = 0.5
# Time between lookups of the other parts once they are known: there may be thousands of keepers.
_PEERS_SECONDS = 5.0
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.5, 30.0
_GRACE_SECONDS = 15.0
# The fleet must not see Ray's credentials for the cluster.
_WITHHELD = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True, slots=True)
class Part:
    """One process of a fleet."""

    name: str
    service: str
    settings: Mapping[str, Any]
    # Settings to fill with another part's address: setting to part name.
    peers: Mapping[str, str] = field(default_factory=dict)
    # Certificates and tokens, by file name; written so that only this process can read them.
    files: Mapping[str, bytes] = field(default_factory=dict)
    # Folder for its files; empty = a temporary folder on the node.
    folder: str = ""


class Host:
    """Keeps one process alive. `find` returns the address of another part, empty while unknown."""

    def __init__(self, part: Part, address: str, find: Callable[[str], str]) -> None:
        self._part, self._address, self._find = part, address, find
        self._folder = Path(part.folder) / part.name if part.folder else Path(tempfile.mkdtemp(prefix="parlmesh-ray-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log, self._offset, self._port = self._folder / "process.log", 0, 0
        self._process: Process | None = None
        self._written: dict[str, Any] = {}
        self._starts, self._last_end = 0, ""
        self._stopping = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=f"keeper of {part.name}", daemon=True)
        self._keeper.start()

    def address(self) -> str:
        """The address where the process serves; empty while it does not."""
        return f"{self._address}:{self._port}" if self._port else ""

    def standing(self) -> dict[str, Any]:
        """The state, for display."""
        process = self._process
        return {
            "name": self._part.name,
            "node": self._address,
            "address": self.address(),
            "pid": process.pid if process is not None else 0,
            "starts": self._starts,
            "last_end": self._last_end,
        }

    def stop(self) -> None:
        """Ends the process, gracefully within the grace period; returns once it has ended."""
        self._stopping.set()
        self._keeper.join()

    def _keep(self) -> None:
        delay, asked = _FIRST_DELAY_SECONDS, 0.0
        settings: dict[str, Any] | None = None
        while not self._stopping.is_set():
            if settings is None or time.monotonic() - asked >= _PEERS_SECONDS:
                settings, asked = self._settings(), time.monotonic()
            if self._process is None:
                if settings is not None:
                    self._start(settings)
                self._stopping.wait(_LOOK_SECONDS)
                continue
            self._port = self._port or serving_port(self._log, self._offset) or 0
            end = self._process.poll()
            if end is not None:
                self._last_end = f"{describe_end(end)}: {last_words(self._log, self._offset)}"
                self._process = None
                self._stopping.wait(delay)
                delay = min(2 * delay, _LONGEST_DELAY_SECONDS)
            elif settings is not None and settings != self._written:
                # Another part has moved.
                self._end()
            else:
                delay = _FIRST_DELAY_SECONDS if self._port else delay
                self._stopping.wait(_LOOK_SECONDS)
        self._end()

    def _settings(self) -> dict[str, Any] | None:
        """The settings with the peers' addresses; None while one is unknown."""
        found: dict[str, Any] = {}
        for key, peer in self._part.peers.items():
            address = self._find(peer)
            if not address:
                return None
            found[key] = address
        settings = merged(self._part.settings, found)
        if self._part.service == "learner":
            settings["run_dir"] = str(self._folder / "run")
        elif self._part.service == "scheduler":
            settings["store"] = {"path": str(self._folder / "scheduler.sqlite")}
        return settings

    def _start(self, settings: dict[str, Any]) -> None:
        for name, data in self._part.files.items():
            path = self._folder / name
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(data)
        self._written = settings
        ports = {"listen": {"host": "0.0.0.0", "port": self._port}} if self._part.service != "actor" else {}  # noqa: S104
        own = self._part.settings.get("security", {})
        secured = {"security": {key: str(self._folder / name) for key, name in own.items() if name in self._part.files}}
        file_ = self._folder / "settings.yaml"
        write_settings(file_, merged(merged(settings, ports), secured))
        self._offset = log_size(self._log)
        environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
        # The start time orders an actor's incarnations, on whatever node they run.
        more = [f"incarnation={time.time_ns() // 1_000_000}"] if self._part.service == "actor" else []
        self._process = spawn(service_command(self._part.service, file_, *more), self._log, environment)
        self._starts += 1

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        terminate(process)
        deadline = time.monotonic() + _GRACE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        kill_session(process.pid)
        process.reap()
