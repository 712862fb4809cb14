"""Journal records that could not be read: logged and counted, never skipped in silence."""

from parlmesh.telemetry import get_logger

from .. import metrics

log = get_logger("parlmesh.scheduler")

# This many are described; the rest are only counted.
DESCRIBED = 20


class UnreadableRecords:
    """Counts the records that a start or a compaction leaves out, and describes the first cases."""

    def __init__(self) -> None:
        self.count = 0
        self.described: list[str] = []

    def add(self, what: str, count: int = 1) -> None:
        """`count`: how many records this leaves out, as far as is known."""
        self.count += count
        if len(self.described) < DESCRIBED:
            self.described.append(what)

    def tell(self, where: str) -> None:
        """Reports the records in the log and in the metrics."""
        if self.count:
            metrics.UNREADABLE_RECORDS.inc(self.count)
            log.error("records_left_out", where=where, records=self.count, first=self.described)
