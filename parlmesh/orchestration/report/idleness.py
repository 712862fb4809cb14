"""Why slots idled while a job ran: each interval between events counts once per idle slot."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from .trace import Attempt, JobTrace

WORKING, OTHERS, NOT_PLACED = "working", "working for others", "idle: ready tasks had not reached a slot"
DEPENDENCIES, NOTHING = "idle: all that was left waited for others", "idle: nothing was submitted"
CAUSES = (WORKING, OTHERS, NOT_PLACED, DEPENDENCIES, NOTHING)


@dataclass(frozen=True)
class Idleness:
    """Slot-seconds by cause, and the longest wait for dependencies."""

    slot_seconds: Mapping[str, float]
    longest_wait: float
    """The longest period in which a slot idled for dependencies."""
    waited_for: str
    """The task that ended it."""


def idleness_of(job: JobTrace, edges: Mapping[str, list[str]], slots: int) -> Idleness:
    """Idleness of `slots` slots, from the first submit to the last end."""
    start, end = job.start, job.end
    others = [each for each in job.others if each.end > start and each.start < end]
    ready = {
        name: max([attempt.submit, *(job.tasks[parent].end for parent in attempt.dependencies if parent in job.tasks)])
        for name, attempt in job.tasks.items()
    }
    moments = sorted({start, end, *_edges(job, others, ready, start, end)})
    seconds = dict.fromkeys(CAUSES, 0.0)
    longest, waited_for, stretch = 0.0, "", 0.0
    mine = [*job.tasks.values(), *job.retried]
    for left, right in pairwise(moments):
        middle, length = (left + right) / 2, right - left
        running = [each for each in mine if each.start <= middle < each.end]
        busy = min(slots, len(running))
        elsewhere = min(slots - busy, sum(1 for each in others if each.start <= middle < each.end))
        waiting = sum(1 for name, each in job.tasks.items() if ready[name] <= middle < each.start)
        unplaced = min(slots - busy - elsewhere, waiting)
        rest = slots - busy - elsewhere - unplaced
        submitted = any(each.submit <= middle < ready[name] for name, each in job.tasks.items()) or bool(running)
        seconds[WORKING] += busy * length
        seconds[OTHERS] += elsewhere * length
        seconds[NOT_PLACED] += unplaced * length
        seconds[DEPENDENCIES if submitted else NOTHING] += rest * length
        stretch = stretch + length if rest and submitted else 0.0
        if stretch > longest:
            longest = stretch
            waited_for = max(running, key=lambda each: each.end).task_id if running else waited_for
    return Idleness(seconds, longest, waited_for)


def _edges(job: JobTrace, others: list[Attempt], ready: Mapping[str, float], start: float, end: float) -> list[float]:
    """Times at which something changes."""
    found = [*ready.values()]
    for attempt in (*job.tasks.values(), *job.retried, *others):
        found += [attempt.submit, attempt.start, attempt.end]
    return [moment for moment in found if start < moment < end]
