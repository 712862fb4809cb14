import os
import stat

import pytest

from learner.federation.journal import Journal, encode, read_journal
from learner.federation.rules import events
from parlmesh.durable_files import PRIVATE, replace_file
from parlmesh.errors import FailedPrecondition

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
    # Only what was not synced can be torn.
    written = [EVENTS[0], events.Refused("a", 1, "NOT_ASKED", "x" * 20)]
    for event in written:
        append(journal, event)
    journal.close()
    os.truncate(path, path.stat().st_size - torn)
    kept = found(path)
    assert kept == (written if torn == 1 else written[:1])
    journal = Journal(path)
    append(journal, EVENTS[2])
    journal.close()
    assert found(path) == [*kept, EVENTS[2]]


def _unlink(path):
    path.unlink()


def _empty(path):
    os.truncate(path, 0)


def _cut_a_line(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _flip_in_the_last_line(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


DAMAGES = [_unlink, _empty, _cut_a_line, _flip_in_the_last_line]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("compacted", [False, True])
def test_a_journal_that_lost_what_was_synced_is_an_error_and_a_copy_mends_it(tmp_path, damage, compacted):
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for event in EVENTS[:3]:
        append(journal, event)
    if compacted:
        journal.compact(encode(events.Restored({"round": 7}), 5.0))
        append(journal, EVENTS[3])
    copy = path.read_bytes()
    damage(path)
    with pytest.raises(FailedPrecondition, match="put a whole copy in its place") as lost:
        found(path)
    assert lost.value.reason == "JOURNAL_LOST"
    path.write_bytes(copy)
    assert len(found(path)) == (2 if compacted else 3)


@pytest.mark.parametrize("damage", [_unlink, _empty, lambda path: os.replace(path.with_name("other"), path)])
def test_nothing_is_written_to_a_journal_that_was_taken_away(tmp_path, damage):
    path = tmp_path / "journal.jsonl"
    path.with_name("other").write_bytes(b"")
    journal = Journal(path)
    append(journal, EVENTS[0])
    damage(path)
    with pytest.raises(OSError, match="deleted, replaced or cut while it was in use"):
        append(journal, EVENTS[1])


def test_a_journal_of_the_release_before_has_no_witness_and_is_read(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode(EVENTS[0], 1.0))
    assert found(path) == EVENTS[:1]


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
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal.jsonl", "journal.jsonl.witness"]
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
