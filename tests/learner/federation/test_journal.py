import os
import stat

import pytest

from learner.federation.journal import Journal, encode, read_journal
from learner.federation.rules import events
from parlmesh.errors import FailedPrecondition
from parlmesh.files import PRIVATE, replace_file

from .conftest import files_no_longer_than

EVENTS = [events.Begin(("a", "b"), f"entropy{k}", float(k)) for k in range(20)]


def append(journal, event, now=1.0):
    journal.append(event, encode(event, now))


def found(path):
    return [event for event, _ in read_journal(path)]


def test_a_line_that_did_not_fit_is_taken_back_and_the_next_is_whole(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    append(journal, EVENTS[0])
    for room in range(1, 60, 7):
        size = path.stat().st_size
        with files_no_longer_than(size + room), pytest.raises(OSError, match="too large"):
            append(journal, EVENTS[1])
        assert path.stat().st_size == size
    append(journal, EVENTS[2])
    journal.close()
    assert found(path) == [EVENTS[0], EVENTS[2]]


@pytest.mark.parametrize("torn", range(1, 40))
def test_a_line_torn_at_any_byte_is_dropped_or_kept_whole_and_never_glued_to_the_next(tmp_path, torn):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for event in EVENTS[:2]:
        append(journal, event)
    journal.close()
    os.truncate(path, path.stat().st_size - torn)
    kept = found(path)
    assert kept == (EVENTS[:2] if torn == 1 else EVENTS[:1])
    journal = Journal(path)
    append(journal, EVENTS[2])
    journal.close()
    assert found(path) == [*kept, EVENTS[2]]


def test_damage_before_the_last_line_is_told(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for event in EVENTS[:3]:
        append(journal, event)
    journal.close()
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    with pytest.raises(FailedPrecondition, match="line 1 of"):
        found(path)


def test_a_compacted_journal_has_one_line_and_goes_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for _ in range(2_000):
        append(journal, events.Refused("a", 1, "NOT_ASKED", "x" * 3_000))
    assert journal.long
    state = events.Restored({"round": 7})
    with files_no_longer_than(10), pytest.raises(OSError, match="too large"):
        journal.compact(encode(state, 5.0))
    append(journal, EVENTS[0])
    assert len(found(path)) == 2_001
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal.jsonl"]
    journal.compact(encode(state, 5.0))
    assert not journal.long
    append(journal, EVENTS[1])
    journal.close()
    assert found(path) == [state, EVENTS[1]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_is_there_whole_or_as_it_was(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old", mode=PRIVATE)
    with files_no_longer_than(100), pytest.raises(OSError, match="too large"):
        replace_file(path, bytes(1_000), mode=PRIVATE)
    assert path.read_bytes() == b"old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
