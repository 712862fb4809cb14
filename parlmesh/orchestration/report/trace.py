"""A job's attempts, read from the scheduler's trace. A job is the tasks JOB/… and everything they depend on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parlmesh.errors import InvalidInput, NotFound

_MICROSECONDS = 1e6
SUCCEEDED = "SUCCEEDED"
# States of attempts that were followed by others.
RETRIED, LOST = "RETRIED", "LOST"


@dataclass(frozen=True)
class Attempt:
    """One attempt; times in seconds on the scheduler's clock."""

    task_id: str
    kind: str
    state: str
    actor_id: str
    row: int
    number: int
    submit: float
    start: float
    end: float
    dependencies: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it ran."""
        return self.end - self.start

    @property
    def repeated(self) -> bool:
        """Whether the task had to wait for another attempt: this one failed, or was lost with its actor."""
        return self.state in (RETRIED, LOST)

    @property
    def failed(self) -> bool:
        """Whether the task ended with it, and did not succeed."""
        return self.state != SUCCEEDED and not self.repeated


def attempts_in(trace: str) -> list[Attempt]:
    """Every attempt of a trace."""
    try:
        events = json.loads(trace)["traceEvents"]
        names = {event["pid"]: str(event["args"]["name"]) for event in events if event.get("ph") == "M"}
        return [_attempt(event, names) for event in events if event.get("ph") == "X"]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"the trace cannot be read: {error!r}") from error


def _attempt(event: Mapping[str, Any], names: Mapping[int, str]) -> Attempt:
    about = event["args"]
    start = event["ts"] / _MICROSECONDS
    return Attempt(
        task_id=str(about["task_id"]),
        kind=str(event["name"]),
        state=str(about["state"]),
        actor_id=names.get(event["pid"], "?"),
        row=int(event["tid"]),
        number=int(about["attempt"]),
        submit=start - about["queued_ms"] / 1e3,
        start=start,
        end=start + event["dur"] / _MICROSECONDS,
        dependencies=tuple(str(name) for name in about.get("dependencies", ())),
    )


@dataclass(frozen=True)
class JobTrace:
    """The last attempt of every task of a job, earlier attempts, and other jobs' attempts."""

    job: str
    tasks: Mapping[str, Attempt]
    retried: Sequence[Attempt]
    others: Sequence[Attempt]
    unknown: frozenset[str]
    """Dependencies that are not in the trace: they ended too long ago, or their part was left out."""

    @property
    def start(self) -> float:
        """When the first task was submitted."""
        return min(attempt.submit for attempt in (*self.tasks.values(), *self.retried))

    @property
    def end(self) -> float:
        """When the last one ended."""
        return max(attempt.end for attempt in self.tasks.values())


def job_in(attempts: Sequence[Attempt], job: str) -> JobTrace:
    """A job's part of a trace; raises NotFound if there is none."""
    finals = {attempt.task_id: attempt for attempt in attempts if not attempt.repeated}
    members = {name for name in finals if name == job or name.startswith(f"{job}/")}
    if not members:
        raise NotFound(
            f'no ended task of job "{job}" is in the trace; a job is the tasks "{job}/…" or the task "{job}" with what'
            " it depends on, and --seconds says how far back to look",
            job=job,
        )
    open_ends, unknown = list(members), set()
    while open_ends:
        for name in finals[open_ends.pop()].dependencies:
            if name not in finals:
                unknown.add(name)
            elif name not in members:
                members.add(name)
                open_ends.append(name)
    tasks = {name: finals[name] for name in sorted(members, key=lambda name: finals[name].start)}
    retried = [attempt for attempt in attempts if attempt.repeated and attempt.task_id in members]
    others = [attempt for attempt in attempts if attempt.task_id not in members]
    return JobTrace(job, tasks, retried, others, frozenset(unknown))
