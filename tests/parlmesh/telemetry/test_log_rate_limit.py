import logging

from parlmesh.telemetry.log_rate_limit import BY_EVENT, LEFT_OUT, USUAL, LineLimit
from parlmesh.testing import HandClock

REFUSED = BY_EVENT["call_refused"]


class Lines(logging.Handler):
    """The records that pass."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.limit = LineLimit(clock)
        self.addFilter(self.limit)
        self.seen: list[logging.LogRecord] = []
        self.logger = logging.getLogger("parlmesh.telemetry")

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)

    def count(self, event: str) -> int:
        return sum(record.getMessage() == event for record in self.seen)

    def __enter__(self) -> "Lines":
        self.logger.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self.logger.removeHandler(self)


def test_a_flood_of_refusals_leaves_a_few_lines_and_their_number() -> None:
    clock = HandClock()
    with Lines(clock) as lines:
        for _ in range(60):
            for _ in range(1000):
                lines.logger.warning("call_refused")
            clock.advance(1.0)
        lines.limit.tell()
    assert lines.count("call_refused") <= REFUSED.burst + 60 * REFUSED.per_second
    told = [record.__dict__["parlmesh_fields"] for record in lines.seen if record.getMessage() == LEFT_OUT]
    assert lines.count("call_refused") + sum(one["by_event"]["call_refused"] for one in told) == 60_000
    assert 5 <= len(told) <= 8


def test_one_event_does_not_silence_another() -> None:
    with Lines(HandClock()) as lines:
        for _ in range(int(USUAL.burst) + 5):
            lines.logger.warning("noise")
        lines.logger.warning("news")
    assert lines.count("noise") == USUAL.burst
    assert lines.count("news") == 1


def test_what_is_told_is_told_once() -> None:
    with Lines(HandClock()) as lines:
        for _ in range(int(REFUSED.burst) + 1):
            lines.logger.warning("call_refused")
        lines.limit.tell()
        lines.limit.tell()
    assert lines.count(LEFT_OUT) == 1


def test_sentences_of_libraries_are_not_remembered_for_ever() -> None:
    with Lines(HandClock()) as lines:
        for number in range(5000):
            lines.logger.warning("sentence %d", number)
    assert len(lines.seen) == 5000
    assert len(lines.limit._left) <= 1000
