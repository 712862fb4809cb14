"""The rounds that are remembered, newest last, with what is said of each update. Pure."""

from collections import deque
from collections.abc import Iterable

from .records import RoundRecord

KEPT_ROUNDS = 1_000
# What is said of single updates, over all rounds that are kept; the oldest rounds lose theirs first.
_MOST_RECORDS = 20_000


class History(deque[RoundRecord]):
    """Bounded in rounds and in what is said of updates."""

    def __init__(self, records: Iterable[RoundRecord] = ()) -> None:
        super().__init__(records, KEPT_ROUNDS)

    def open(self, record: RoundRecord) -> None:
        """Adds a round that begins."""
        self.append(record)
        listed = sum(len(each.updates) for each in self)
        for each in self:
            if listed <= _MOST_RECORDS:
                break
            listed -= len(each.updates)
            each.forget_updates()

    def of(self, number: int, version: int) -> RoundRecord:
        """The round that a refusal belongs to: the present one, unless it came late for its own."""
        if not self:
            self.append(RoundRecord(0, version, 0.0))
        for record in reversed(self):
            if record.number == number:
                return record
        return self[-1]

    def digest_of(self, version: int) -> str:
        """The digest of a model that one of these rounds made; empty when none did."""
        return next((record.digest for record in reversed(self) if record.policy_version == version), "")

    def lists(self, number: int, node_id: str) -> bool:
        """Whether one more refusal of a node in a round is listed; one that is not is only counted."""
        if not self:
            return True
        record = self.of(number, 0)
        if not record.takes(node_id):
            record.unrecorded += 1
            return False
        return True
