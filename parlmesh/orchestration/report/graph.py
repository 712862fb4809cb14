"""The dependencies between tasks: declared ones, and those inferred from submit times."""

from collections.abc import Mapping

from .trace import JobTrace


def edges_of(job: JobTrace) -> dict[str, list[str]]:
    """The tasks that each task waited for.

    A task submitted after others had ended depends on the last of them: the submitter may have waited for it.
    """
    ends = sorted((attempt.end, name) for name, attempt in job.tasks.items())
    found: dict[str, list[str]] = {}
    position = 0
    last = ""
    for name, attempt in sorted(job.tasks.items(), key=lambda item: item[1].submit):
        while position < len(ends) and ends[position][0] <= attempt.submit:
            last = ends[position][1]
            position += 1
        declared = [parent for parent in attempt.dependencies if parent in job.tasks]
        found[name] = [*declared, last] if last and last not in declared else declared
    return found


def in_order(edges: Mapping[str, list[str]]) -> list[str]:
    """Parents before children."""
    found: dict[str, None] = {}
    for name in edges:
        stack = [(name, iter(edges[name]))]
        entered = {name}
        while stack:
            top, parents = stack[-1]
            parent = next((each for each in parents if each not in found and each not in entered), None)
            if parent is None:
                found.setdefault(top)
                stack.pop()
            else:
                entered.add(parent)
                stack.append((parent, iter(edges[parent])))
    return list(found)


def longest_chain(edges: Mapping[str, list[str]], seconds: Mapping[str, float]) -> tuple[float, list[str]]:
    """The lower bound on the duration for any number of slots, and the tasks that determine it."""
    best: dict[str, tuple[float, str]] = {}
    for name in in_order(edges):
        before, parent = max(((best[each][0], each) for each in edges[name]), default=(0.0, ""))
        best[name] = (before + seconds[name], parent)
    name = max(best, key=lambda each: best[each][0])
    total, chain = best[name][0], []
    while name:
        chain.append(name)
        name = best[name][1]
    return total, chain[::-1]


def with_slots(
    edges: Mapping[str, list[str]], seconds: Mapping[str, float], delays: Mapping[str, float], slots: int
) -> float:
    """The job's duration on this many slots when ready tasks start immediately, in the given order.

    `delays` is the time from the last parent's end until a task could start, regardless of slots.
    """
    children: dict[str, list[str]] = {name: [] for name in edges}
    waits = {name: len(set(parents)) for name, parents in edges.items()}
    for name, parents in edges.items():
        for parent in set(parents):
            children[parent].append(name)
    rank = {name: number for number, name in enumerate(seconds)}
    ready = {name: delays[name] for name, count in waits.items() if count == 0}
    free = [0.0] * slots
    ends: dict[str, float] = {}
    while ready:
        slot = min(range(slots), key=free.__getitem__)
        startable = [name for name, at in ready.items() if at <= free[slot]]
        name = (
            min(startable, key=rank.__getitem__)
            if startable
            else min(ready, key=lambda each: (ready[each], rank[each]))
        )
        ends[name] = free[slot] = max(free[slot], ready.pop(name)) + seconds[name]
        for child in children[name]:
            waits[child] -= 1
            if waits[child] == 0:
                ready[child] = max(ends[parent] for parent in edges[child]) + delays[child]
    return max(ends.values())
