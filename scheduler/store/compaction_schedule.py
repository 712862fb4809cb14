"""When a journal is shortened: once enough is new since the last snapshot, and not right after an attempt that failed.

Enough is the number in the settings, but at least twice the number of records in that snapshot, so that all compactions
together write at most a fixed multiple of the appended records.
"""

from collections.abc import Callable

# A failed compaction, mostly for lack of space, is not tried again immediately.
RETRY_SECONDS = 30.0


class CompactionSchedule:
    """Counts the new records of one journal; the store reports each compaction's start and success."""

    def __init__(self, *, compact_records: int, compact_bytes: int, clock: Callable[[], float]) -> None:
        self._compact_records = compact_records
        self._compact_bytes = compact_bytes
        self._clock = clock
        self.new_records = 0
        self.new_bytes = 0
        # How much was new when the last compaction began; its snapshot covers that much.
        self._covered_records = self._covered_bytes = 0
        # Size of the valid snapshot; its bytes are known once this process has read or written it.
        self.live_tasks = self.live_bytes = 0
        self._not_before = float("-inf")

    def add(self, records: int, size: int) -> None:
        """A batch of so many records and bytes follows the snapshot."""
        self.new_records += records
        self.new_bytes += size

    def is_due(self) -> bool:
        """Whether the journal should be shortened now."""
        many = self.new_records >= max(self._compact_records, 2 * self.live_tasks)
        large = self.new_bytes >= max(self._compact_bytes, 2 * self.live_bytes)
        return (many or large) and self._clock() >= self._not_before

    def begin(self) -> None:
        """Notes that a compaction of all records starts."""
        # Reset when it succeeds; the next compaction removes an unfinished one's rows.
        self._not_before = self._clock() + RETRY_SECONDS
        self._covered_records, self._covered_bytes = self.new_records, self.new_bytes

    def succeed(self, live_tasks: int, live_bytes: int) -> None:
        """The new snapshot, of this size, is valid."""
        self.live_tasks, self.live_bytes = live_tasks, live_bytes
        self.new_records -= self._covered_records
        self.new_bytes -= self._covered_bytes
        self._not_before = float("-inf")
