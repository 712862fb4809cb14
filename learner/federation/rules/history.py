"""The rounds that are remembered, newest last, with the records of their updates. Pure."""

from collections import deque
from collections.abc import Iterable

from .records import RoundRecord

KEPT_ROUNDS = 1_000
# Records of updates over all rounds that are kept; the oldest rounds lose theirs first.
_MOST_RECORDS = 20_000


class History(deque[RoundRecord]):
    """Bounded in rounds and in records of updates."""

    def __init__(self, records: Iterable[RoundRecord] = ()) -> None:
        super().__init__(records, KEPT_ROUNDS)

    def open(self, record: RoundRecord) -> None:
        """Adds a round that starts."""
        self.append(record)
        listed = sum(len(each.updates) for each in self)
        for each in self:
            if listed <= _MOST_RECORDS:
                break
            listed -= len(each.updates)
            each.forget_updates()

    def of(self, number: int, version: int) -> RoundRecord:
        """The round with this number, for a refusal; the newest round if that one is not remembered."""
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
        """Whether one more refusal of a node in a round is listed; otherwise it is only counted."""
        if not self:
            return True
        record = self.of(number, 0)
        if not record.takes(node_id):
            record.unrecorded += 1
            return False
        return True
