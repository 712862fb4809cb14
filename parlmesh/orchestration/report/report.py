"""The critical-path report of one job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .critical_path import PARTS, Part, Segment, chain_of
from .graph import edges_of, longest_chain, with_slots
from .idleness import Idleness, idleness_of
from .trace import SUCCEEDED, Attempt, JobTrace, job_in


@dataclass(frozen=True)
class Report:
    """In seconds, unless the name says otherwise."""

    job: str
    tasks: int
    failed: int
    retried: int
    unknown: int
    """Dependencies that are no longer in the trace."""
    slots: int
    wall: float
    work: float
    """Total running time of all attempts."""
    critical_path: float
    """The longest chain of dependent tasks: no number of slots is faster."""
    critical_tasks: tuple[str, ...]
    critical_steps: int
    """Number of tasks in the chain that determined the duration."""
    achieved_parallelism: float
    possible_parallelism: float
    most_at_once: int
    chain: tuple[Segment, ...]
    parts: Mapping[Part, float]
    """Parts of the chain; they add up to the wall-clock time."""
    idleness: Idleness
    estimated: float
    """Duration of the same tasks on the same slots if the scheduler added no delays."""
    with_one_more: float
    """The duration with one more slot."""


def report_of(attempts: Sequence[Attempt], job: str, slots: int) -> Report:
    """The report of a job from a trace; `slots` is the fleet's number of slots."""
    found = job_in(attempts, job)
    edges = edges_of(found)
    seconds = {name: attempt.seconds for name, attempt in found.tasks.items()}
    chain = tuple(chain_of(found, edges))
    parts: dict[Part, float] = dict.fromkeys(PARTS, 0.0)
    for segment in chain:
        parts[segment.part] += segment.seconds
    critical, critical_tasks = longest_chain(edges, seconds)
    wall = found.end - found.start
    work = sum(seconds.values()) + sum(each.seconds for each in found.retried)
    busiest = _most_at_once([*found.tasks.values(), *found.retried])
    slots = max(slots, busiest, 1)
    delays = _delays(found, edges)
    return Report(
        job=job,
        tasks=len(found.tasks),
        failed=sum(1 for each in found.tasks.values() if each.state != SUCCEEDED),
        retried=len(found.retried),
        unknown=len(found.unknown),
        slots=slots,
        wall=wall,
        work=work,
        critical_path=critical,
        critical_tasks=tuple(critical_tasks),
        critical_steps=sum(1 for segment in chain if segment.part == "run"),
        achieved_parallelism=work / wall if wall > 0 else 0.0,
        possible_parallelism=sum(seconds.values()) / critical if critical > 0 else 0.0,
        most_at_once=busiest,
        chain=chain,
        parts=parts,
        idleness=idleness_of(found, edges, slots),
        estimated=with_slots(edges, seconds, delays, slots),
        with_one_more=with_slots(edges, seconds, delays, slots + 1),
    )


def _delays(job: JobTrace, edges: Mapping[str, list[str]]) -> dict[str, float]:
    """Time from the last parent's end, or the job's start, to the submit: the submitter's own time."""
    return {
        name: max(0.0, attempt.submit - max([job.start, *(job.tasks[parent].end for parent in edges[name])]))
        for name, attempt in job.tasks.items()
    }


def _most_at_once(attempts: Sequence[Attempt]) -> int:
    changes = sorted([(each.start, 1) for each in attempts] + [(each.end, -1) for each in attempts])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
