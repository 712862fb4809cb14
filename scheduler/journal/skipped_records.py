"""What a journal has and could not be taken from it: told in the log and counted, never passed over in silence."""

from parlmesh.telemetry import get_logger

from .. import metrics

log = get_logger("parlmesh.scheduler")

# So many are described; the rest is counted.
DESCRIBED = 20


class UnreadableRecords:
    """Counts what is left out of a start or of a compaction, and describes the first of it."""

    def __init__(self) -> None:
        self.count = 0
        self.described: list[str] = []

    def add(self, what: str, count: int = 1) -> None:
        """`count` is how many are left out by it, as far as is known."""
        self.count += count
        if len(self.described) < DESCRIBED:
            self.described.append(what)

    def tell(self, where: str) -> None:
        """Tells those who read the log and the metrics."""
        if self.count:
            metrics.UNREADABLE_RECORDS.inc(self.count)
            log.error("records_left_out", where=where, records=self.count, first=self.described)
