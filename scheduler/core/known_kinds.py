"""Which kinds actors have announced. Kept over restarts, bounded, and forgotten in time."""

from collections.abc import Collection, Iterable, Iterator

MOST_KINDS = 10_000


class KnownKinds(Collection[str]):
    """Names by the time they were last announced, the oldest first."""

    def __init__(self) -> None:
        self._announced: dict[str, float] = {}

    def __contains__(self, kind: object) -> bool:
        return kind in self._announced

    def __iter__(self) -> Iterator[str]:
        return iter(self._announced)

    def __len__(self) -> int:
        return len(self._announced)

    def announce(self, kinds: Iterable[str], now: float) -> tuple[list[str], list[str]]:
        """(those that were not known, those that are forgotten to make room)."""
        announced = self._announced
        fresh = []
        for kind in kinds:
            if announced.pop(kind, None) is None:
                fresh.append(kind)
            announced[kind] = now
        return fresh, self._forget(list(announced)[: max(0, len(announced) - MOST_KINDS)])

    def expire(self, before: float, used: Collection[str]) -> list[str]:
        """Forgets those that were last announced before that and that nobody has now; returns them."""
        old = []
        for kind, announced in self._announced.items():
            if announced > before:
                break
            if kind not in used:
                old.append(kind)
        return self._forget(old)

    def _forget(self, kinds: list[str]) -> list[str]:
        for kind in kinds:
            del self._announced[kind]
        return kinds
