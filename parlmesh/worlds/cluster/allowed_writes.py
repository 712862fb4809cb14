"""Planned writes and whether they are allowed: decided before the first write, so that a refusal changes nothing."""

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from parlmesh.errors import FailedPrecondition, PermissionDenied, ResourceExhausted

from .settings import LiveConfig

_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Write:
    """One call that changes the cluster, and how many pods it starts, stops or moves."""

    verb: Literal["scale", "affinity", "mark", "evict"]
    namespace: str
    name: str
    """Name of the deployment or pod."""
    version: str
    """The resource version that was read; for an eviction, the pod's uid."""
    pods: int
    replicas: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    """Weights by node, for an affinity write."""


class Guard:
    """Refuses writes with a reason. The time is passed in."""

    def __init__(self, config: LiveConfig) -> None:
        self._config = config
        self._written: deque[tuple[float, int]] = deque()

    def check(self, writes: Sequence[Write], now: float) -> None:
        """Raises unless all writes are allowed now."""
        config = self._config
        if not writes:
            return
        if config.kill_switch is not None and config.kill_switch.exists():
            raise FailedPrecondition(f"{config.kill_switch} exists: nothing is written", reason="KILL_SWITCH")
        for write in writes:
            if write.namespace not in config.allowed_namespaces:
                allowed = ", ".join(config.allowed_namespaces) or "none"
                raise PermissionDenied(
                    f"writes to namespace {write.namespace} are not allowed; allowed are: {allowed}", reason="NAMESPACE"
                )
        while self._written and self._written[0][0] <= now - _MINUTE:
            self._written.popleft()
        self._within("writes_per_minute", config.writes_per_minute, len(self._written), len(writes), now)
        done, asked = sum(pods for _, pods in self._written), sum(write.pods for write in writes)
        self._within("pods_per_minute", config.pods_per_minute, done, asked, now)

    def made(self, write: Write, now: float) -> None:
        """Counts a write, whether it succeeded or not."""
        self._written.append((now, write.pods))

    def _within(self, name: str, most: int, done: int, asked: int, now: float) -> None:
        if done + asked > most:
            wait = self._written[0][0] + _MINUTE - now if self._written else 0.0
            raise ResourceExhausted(
                f"{name} is {most}; {done} were made in the last minute and {asked} more are requested",
                reason="LIMIT",
                retry_after_seconds=max(wait, 0.0),
            )


class WriteLog:
    """JSON lines: each write, its time, the observation that caused it, and its outcome."""

    def __init__(self, config: LiveConfig) -> None:
        self._file = config.log

    def note(self, write: Write, observation: Mapping[str, Any], outcome: str, now: float) -> None:
        """Appends a line and syncs it: once before the write (`asked`), and once with its outcome."""
        line = {"time": now, "outcome": outcome, **asdict(write), "observation": observation}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(line) + "\n")
            opened.flush()
            os.fsync(opened.fileno())
