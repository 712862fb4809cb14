"""The chain that determined a job's duration. Traced back from the end, it assigns every moment to exactly one part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .trace import JobTrace

Part = Literal["run", "slot", "retry", "orchestrator"]
PARTS: dict[Part, str] = {
    "run": "running",
    "slot": "waiting for a slot",
    "retry": "attempts that were repeated",
    "orchestrator": "nothing was submitted",
}


@dataclass(frozen=True)
class Segment:
    """A period of time, and its task."""

    part: Part
    task_id: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def chain_of(job: JobTrace, edges: Mapping[str, list[str]]) -> list[Segment]:
    """From the first submit to the last end, without gaps."""
    name = max(job.tasks, key=lambda each: job.tasks[each].end)
    segments: list[Segment] = []
    until = job.tasks[name].end
    while True:
        attempt = job.tasks[name]
        start = min(attempt.start, until)
        segments.append(Segment("run", name, start, until))
        parents = [parent for parent in edges[name] if job.tasks[parent].end <= until]
        before = max(parents, key=lambda each: job.tasks[each].end, default="")
        seen = job.tasks[before].end if before else job.start
        # The submitter sees the parent's end first, so time before the submit is not the scheduler's.
        submit = min(max(attempt.submit, seen), start)
        segments += reversed(_waits(job, name, submit, start))
        seen = min(seen, submit)
        if submit > seen:
            segments.append(Segment("orchestrator", name, seen, submit))
        if not before:
            return segments[::-1]
        name, until = before, seen


def _waits(job: JobTrace, name: str, start: float, end: float) -> list[Segment]:
    """The time before an attempt: earlier attempts of the task, and the waits for a slot between them."""
    found: list[Segment] = []
    for attempt in sorted((each for each in job.retried if each.task_id == name), key=lambda each: each.start):
        first, last = max(attempt.start, start), min(attempt.end, end)
        if first < last:
            if first > start:
                found.append(Segment("slot", name, start, first))
            found.append(Segment("retry", name, first, last))
            start = last
    if end > start:
        found.append(Segment("slot", name, start, end))
    return found
