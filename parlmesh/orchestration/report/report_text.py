"""A report as readable lines, and the difference between two reports."""

from .critical_path import PARTS, Part
from .idleness import CAUSES
from .report import Report

_MOST_SEGMENTS = 20


def lines_of(report: Report) -> list[str]:
    """The whole report."""
    wall = report.wall or 1e-9
    lines = [
        f"job {report.job}: {report.tasks} tasks on {report.slots} slots, {_seconds(report.wall)}"
        + (f", {report.failed} did not succeed" if report.failed else "")
        + (f", {report.retried} attempts repeated" if report.retried else ""),
    ]
    if report.unknown:
        lines.append(f"incomplete: {report.unknown} dependencies are no longer in the trace")
    lines += [
        f"parallelism: {report.achieved_parallelism:.2f} achieved, {report.possible_parallelism:.2f} possible,"
        f" {report.most_at_once} tasks at once at most",
        f"critical steps: {report.critical_steps} tasks in a row set the time; the longest chain that had to follow"
        f" each other takes {_seconds(report.critical_path)}",
        "",
        "where the time went, along that chain:",
        *(f"  {seconds / wall:6.1%}  {_seconds(seconds):>10}  {PARTS[part]}" for part, seconds in report.parts.items()),
        "",
        "use of the slots:",
    ]
    total = sum(report.idleness.slot_seconds.values()) or 1e-9
    lines += [f"  {report.idleness.slot_seconds[cause] / total:6.1%}  {cause}" for cause in CAUSES]
    if report.idleness.waited_for:
        lines.append(
            f"  slots idled longest, {_seconds(report.idleness.longest_wait)}, while {report.idleness.waited_for} ran"
        )
    lines += ["", f"the chain{_of_the_first(report)}:"]
    lines += [
        f"  {_seconds(segment.start - report.chain[0].start):>10}  {_seconds(segment.seconds):>10}"
        f"  {PARTS[segment.part]}: {segment.task_id}"
        for segment in report.chain[:_MOST_SEGMENTS]
    ]
    return [*lines, "", _one_more(report)]


def _of_the_first(report: Report) -> str:
    return f", its first {_MOST_SEGMENTS} of {len(report.chain)} parts" if len(report.chain) > _MOST_SEGMENTS else ""


def _one_more(report: Report) -> str:
    saved = report.estimated - report.with_one_more
    if saved <= 0.005 * max(report.estimated, 1e-9):
        return "one more slot would have saved nothing"
    return f"one more slot would have saved {saved / report.estimated:.0%}, about {_seconds(saved)}"


def comparison_of(first: Report, second: Report) -> list[str]:
    """A table of both reports, and the main cause of the difference."""
    difference = second.wall - first.wall
    ratio = max(first.wall, second.wall) / max(min(first.wall, second.wall), 1e-9)
    slower = second if difference >= 0 else first
    lines = [
        f"{first.job}: {_seconds(first.wall)}, {second.job}: {_seconds(second.wall)};"
        f" {slower.job} took {ratio:.2f} times as long",
        "",
        f"  {'':32}{first.job[:18]:>20}{second.job[:18]:>20}",
    ]
    rows: list[tuple[str, float, float]] = [
        ("tasks", first.tasks, second.tasks),
        ("slots", first.slots, second.slots),
        ("critical steps", first.critical_steps, second.critical_steps),
        ("achieved parallelism", first.achieved_parallelism, second.achieved_parallelism),
        ("possible parallelism", first.possible_parallelism, second.possible_parallelism),
        ("work, s", first.work, second.work),
        ("longest chain, s", first.critical_path, second.critical_path),
    ]
    rows += [(f"{PARTS[part]}, s", first.parts[part], second.parts[part]) for part in PARTS]
    lines += [f"  {name:32}{one:>20.6g}{other:>20.6g}" for name, one, other in rows]
    return [*lines, "", _cause(first, second, difference)]


def _cause(first: Report, second: Report, difference: float) -> str:
    if abs(difference) <= 0.01 * max(first.wall, second.wall):
        return "no significant difference"
    # The part that changed most in the direction of the total.
    changes: dict[Part, float] = {part: (second.parts[part] - first.parts[part]) for part in PARTS}
    part = max(changes, key=lambda each: changes[each] * (1 if difference > 0 else -1))
    said = f"{difference:+.3f} s in all, most of it {PARTS[part]} on the chain ({changes[part]:+.3f} s)"
    if part == "run":
        quick, slow = (first, second) if difference > 0 else (second, first)
        if slow.work <= 1.15 * quick.work:
            said += (
                f": about the same work, {quick.achieved_parallelism:.1f} at a time in {quick.job}"
                f" and {slow.achieved_parallelism:.1f} in {slow.job}"
            )
        else:
            said += f": {slow.job} had {slow.work / max(quick.work, 1e-9):.1f} times the work"
    return said


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"
