"""Counts which blobs a client still needs: arguments of unfinished tasks, arrays it put, and results that are still
held."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# Most unreleased results that are tracked. Older ones are dropped here and removed by the scheduler's retention.
_MOST_RESULTS = 20_000


class _Needs(NamedTuple):
    """What a task needs until it ends."""

    names: tuple[str, ...] = ()
    """Blobs that this client wrote for it, or that the request referred to."""
    parents: tuple[str, ...] = ()
    """Tasks whose results it gets."""


_NOTHING = _Needs()


class BlobUses:
    """The counts. Blobs that its methods return may be released, unless something else needs them."""

    def __init__(self) -> None:
        self.tasks: dict[str, _Needs] = {}
        """Unfinished tasks that need blobs or results."""
        self.puts: Counter[str] = Counter()
        self.arguments: Counter[str] = Counter()
        # One blob may be the result of several tasks.
        self._results: Counter[str] = Counter()
        self._held: dict[str, frozenset[str]] = {}
        # Tasks whose results only this client's objects use; other results may still be read by other programs.
        self._own: set[str] = set()
        # By task: how many unfinished tasks use its result, and what is released once none do.
        self._dependents: Counter[str] = Counter()
        self._later: dict[str, frozenset[str]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.arguments or name in self.puts or name in self._results

    def __iter__(self) -> Iterator[str]:
        """The blobs to release when this client closes."""
        stay = {name for task_id, names in self._held.items() if task_id not in self._own for name in names}
        return iter({*self.arguments, *self.puts, *self._results} - stay)

    def begin(self, task_id: str, names: Iterable[str], parents: Iterable[str]) -> None:
        """A task needs these blobs and the results of others. If an id is used twice, both uses count."""
        new = _Needs(tuple(names), tuple(parents))
        before = self.tasks.get(task_id, _NOTHING)
        self.tasks[task_id] = _Needs(before.names + new.names, before.parents + new.parents)
        self.arguments.update(new.names)
        self._dependents.update(new.parents)

    def end(self, task_id: str, answered: frozenset[str]) -> set[str]:
        """An ended task needs nothing more; its result, if it has one, is held until it is released. Returns blobs to
        release."""
        needs = self.tasks.pop(task_id)
        self.hold(task_id, answered)
        _subtract(self.arguments, needs.names)
        _subtract(self._dependents, needs.parents)
        free = set(needs.names)
        for parent in needs.parents:
            if parent not in self._dependents and parent in self._later:
                free |= self.release(parent, self._later.pop(parent))
        return free

    def hold(self, task_id: str, names: frozenset[str], *, own: bool = False) -> None:
        """Holds the result of a task; `own`: it is released when this client closes."""
        if own:
            self._own.add(task_id)
        if names and task_id not in self._held:
            self._held[task_id] = names
            self._results.update(names)
            if len(self._held) > _MOST_RESULTS:
                self._drop(next(iter(self._held)))

    def _drop(self, task_id: str) -> None:
        self._own.discard(task_id)
        _subtract(self._results, self._held.pop(task_id, ()))

    def release(self, task_id: str, names: frozenset[str]) -> frozenset[str]:
        """A result is no longer held. Deferred until the tasks that take it as an argument have ended: the scheduler
        may not know them yet, and they may return one of its arrays."""
        if task_id in self._dependents:
            self._later[task_id] = names
            return frozenset()
        self._drop(task_id)
        return names

    def take_back(self, name: str) -> None:
        """Drops one reference to an array that was put."""
        _subtract(self.puts, [name])


def _subtract(counts: Counter[str], names: Iterable[str]) -> None:
    """Removes keys whose count reaches 0."""
    for name in names:
        counts[name] -= 1
        if counts[name] <= 0:
            del counts[name]
