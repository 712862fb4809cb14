"""Which blobs are kept, for whom and how long; forged, oversized and foreign ones are refused."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from parlmesh.blobs import BlobFolder, Blobs, Reference, name_of
from parlmesh.blobs.spares import SPARES, private_file
from parlmesh.blobs.store import PROOF
from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, NotFound, ResourceExhausted
from parlmesh.testing.clocks import HandClock
from parlmesh.wire import payload_to_proto
from scheduler import blob_ledger, metrics
from scheduler.blob_folder import claim
from scheduler.blob_ledger import BlobLedger
from scheduler.config import BlobConfig
from scheduler.core.task import Task, TaskState
from scheduler.wire import hot_messages

CONFIG = BlobConfig(max_bytes=1000, lease_seconds=10, retention_seconds=100)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: HandClock) -> BlobLedger:
    made = BlobLedger(CONFIG, tmp_path / "blobs", clock)
    made.open(())
    return made


def kept(ledger: BlobLedger, fill: int, size: int = 400, writer: str = "c") -> Reference:
    data = np.full(size, fill, np.uint8)
    name = name_of(writer, "1", data.data)
    ledger.folder.write(name, data.data)
    return Reference(name, data.dtype, data.shape)


def task_with(*references: Reference, task_id: str = "t", dependencies: tuple[str, ...] = ()) -> Task:
    parameters = {"x": [{"$result": name} for name in dependencies]}
    payload = payload_to_proto(parameters, {str(index): each for index, each in enumerate(references)})
    body = hot_messages.assignment_body("echo", 3, 1.0, payload.SerializeToString())
    return Task(task_id, "echo", body, dependencies=dependencies)


def accept(ledger: BlobLedger, task: Task, writer: str = "") -> Task:
    for one, references in ledger.argued([task], writer=writer):
        ledger.hold(one, references)
    return task


def finish(ledger: BlobLedger, task: Task, *references: Reference) -> None:
    task.state = TaskState.SUCCEEDED
    task.result = payload_to_proto({}, {str(index): each for index, each in enumerate(references)}).SerializeToString()
    ((_, _, result, failure, _),) = ledger.checked([(task.task_id, 1, task.result, None, 0.0)])
    assert (result, failure) == (task.result, None)
    ledger.ended([task])


def files(ledger: BlobLedger) -> int:
    return sum(not name.startswith(".") for name in os.listdir(ledger.folder.path))


def killed(ledger: BlobLedger) -> None:
    """Does what the end of its process does: the folder has no owner."""
    assert ledger._claim is not None
    os.close(ledger._claim)
    ledger._claim = None


def swept(ledger: BlobLedger, clock: HandClock, seconds: float) -> int:
    clock.advance(seconds)
    ledger.sweep()
    return files(ledger)


def test_an_argument_is_kept_until_its_task_ends_and_its_client_gives_it_up(
    ledger: BlobLedger, clock: HandClock
) -> None:
    reference = kept(ledger, 1)
    task = accept(ledger, task_with(reference))
    assert swept(ledger, clock, 1000) == 1
    ledger.ended([task])
    assert swept(ledger, clock, 5) == 1
    assert ledger.hold_names([reference.name], 0, lambda name, task_id: True) == 1
    assert (files(ledger), ledger.bytes) == (0, 0)


def test_an_argument_that_its_client_never_gives_up_goes_with_its_lease(ledger: BlobLedger, clock: HandClock) -> None:
    ledger.ended([accept(ledger, task_with(kept(ledger, 1)))])
    assert swept(ledger, clock, 9) == 1
    assert swept(ledger, clock, 2) == 0


def test_a_result_is_kept_for_the_retention_and_for_tasks_that_need_it(ledger: BlobLedger, clock: HandClock) -> None:
    producer = accept(ledger, task_with(task_id="one"))
    consumer = accept(ledger, task_with(task_id="two", dependencies=("one",)))
    reference = kept(ledger, 1, writer="a1")
    finish(ledger, producer, reference)
    ledger.hold_names([reference.name], 0, lambda name, task_id: task_id == "one")
    assert swept(ledger, clock, 1000) == 1
    ledger.ended([consumer])
    assert swept(ledger, clock, 2) == 0


def test_files_that_no_task_ever_named_go_after_the_retention(ledger: BlobLedger, clock: HandClock) -> None:
    old, young = ledger.folder.file(kept(ledger, 1).name), ledger.folder.file(kept(ledger, 2).name)
    os.utime(old, (1.0, 1.0))
    assert swept(ledger, clock, 60) == 1
    assert young.exists()


def test_files_that_no_task_ever_named_go_when_their_writer_gives_them_up(ledger: BlobLedger) -> None:
    mine, other = kept(ledger, 1), kept(ledger, 2, writer="n1")
    names = [mine.name, other.name, name_of("c", "1", b"?")]
    assert ledger.hold_names(names, 0, lambda name, task_id: name.startswith("blob:c")) == 0
    assert (ledger.folder.size(mine.name), ledger.folder.size(other.name)) == (-1, 400)
    with pytest.raises(InvalidInput):
        ledger.hold_names(["blob:../../etc/passwd"], 0, lambda name, task_id: True)


def test_files_that_somebody_needs_stay_although_no_task_has_named_them(ledger: BlobLedger, clock: HandClock) -> None:
    name = kept(ledger, 1).name
    os.utime(ledger.folder.file(name), (1.0, 1.0))
    assert ledger.folder.touch(name)
    assert swept(ledger, clock, 60) == 1
    assert ledger.folder.file(name).stat().st_mtime == 1.0


def test_files_that_are_not_blobs_are_left_alone(ledger: BlobLedger, clock: HandClock) -> None:
    (ledger.folder.path / "notes.txt").write_text("mine")
    (ledger.folder.path / "old").mkdir()
    for name in ("notes.txt", "old"):
        os.utime(ledger.folder.path / name, (0.0, 0.0))
    swept(ledger, clock, 1_000.0)
    assert (ledger.folder.path / "notes.txt").read_text() == "mine"
    assert (ledger.folder.path / "old").is_dir()


def test_files_of_the_folder_itself_are_never_removed(ledger: BlobLedger, clock: HandClock) -> None:
    (ledger.folder.path / SPARES).mkdir(exist_ok=True)
    own = {entry.name for entry in ledger.folder.path.iterdir()}
    for name in own:
        os.utime(ledger.folder.path / name, (1.0, 1.0))
    swept(ledger, clock, 60)
    assert {entry.name for entry in ledger.folder.path.iterdir()} == own
    assert len(own) == 3


def test_files_of_removed_blobs_are_kept_to_be_written_again_while_blobs_leave_room(
    tmp_path: Path, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_ledger, "is_shared_memory", lambda folder: True)
    config = CONFIG.model_copy(update={"max_bytes": 4 << 20, "spare_bytes": 2 << 20})
    ledger = BlobLedger(config, tmp_path / "blobs", clock)
    ledger.open(())

    def given_up(fill: int) -> str:
        reference = kept(ledger, fill, size=1 << 20)
        ledger.ended([accept(ledger, task_with(reference, task_id=f"t{fill}"))])
        assert ledger.hold_names([reference.name], 0, lambda name, task_id: True) == 1
        return reference.name

    name = given_up(1)
    assert (ledger.bytes, ledger.stock.bytes, ledger.folder.size(name)) == (0, 1 << 20, -1)
    with pytest.raises(NotFound):
        ledger.check({name: 1 << 20})
    before = kept(ledger, 2, size=1 << 20)
    assert swept(ledger, clock, 2) == 1
    assert ledger.stock.bytes == 0, "it is that file"
    for fill in range(3, 9):
        data = np.full(1 << 20, fill, np.uint8).data
        name = name_of("c", "1", data)
        ledger.folder.file(name).write_bytes(data)
        ledger.keep(name, 1 << 20, 0.0)
        ledger.hold_names([name], 0, lambda name, task_id: True)
        assert ledger.stock.bytes <= 2 << 20
    assert ledger.stock.bytes == 2 << 20
    accept(ledger, task_with(before, task_id="one"))
    accept(ledger, task_with(kept(ledger, 10, size=5 << 19), task_id="two"))
    assert (ledger.bytes, ledger.stock.bytes) == (7 << 19, 0)
    clock.advance(1)
    # A process that has them mapped since an earlier lifetime may be of a release that locks nothing.
    killed(ledger)
    again = BlobLedger(config, ledger.folder.path, clock)
    again.open(())
    assert again.hold_names([before.name], 0, lambda name, task_id: True) == 1
    assert (again.folder.size(before.name), again.stock.bytes) == (-1, 0)
    again.close(forget=True)
    assert not ledger.folder.path.exists()


def test_a_process_of_a_release_that_locks_nothing_does_not_share_the_folder(ledger: BlobLedger) -> None:
    assert not (ledger.folder.path / ".proof").exists()


def test_unknown_forged_and_foreign_names_are_refused(ledger: BlobLedger) -> None:
    there, gone = kept(ledger, 1), Reference(name_of("c", "1", b"?"), np.dtype(np.uint8), (400,))
    larger = Reference(there.name, np.dtype(np.float64), (400,))
    for reference, writer, reason in (
        (gone, "", "BLOB_UNKNOWN"),
        (larger, "", "BLOB_SIZE"),
        (there, "n1", "BLOB_UNKNOWN"),
    ):
        with pytest.raises(FleetError) as refused:
            ledger.argued([task_with(reference)], writer=writer)
        assert refused.value.reason == reason
    for name in ("blob:c.1.short", "blob:../../etc.1." + "0" * 32, "c.1." + "0" * 32):
        with pytest.raises(InvalidInput):
            BlobFolder(ledger.folder.path).read(name, 4)


def test_a_result_that_names_no_blob_of_the_folder_is_a_failure(ledger: BlobLedger) -> None:
    forged = Reference(name_of("a1", "1", b"?"), np.dtype(np.uint8), (400,))
    result = payload_to_proto({}, {"0": forged}).SerializeToString()
    ((_, _, kept_result, failure, _),) = ledger.checked([("t", 1, result, None, 0.0)])
    assert kept_result == b""
    assert failure is not None
    assert failure.reason == "INVALID_RESULT"


def test_bytes_that_do_not_match_the_digest_are_refused_and_a_link_is_not_followed(ledger: BlobLedger) -> None:
    reference = kept(ledger, 1)
    ledger.folder.file(reference.name).write_bytes(bytes(400))
    with pytest.raises(InvalidInput, match="digest"):
        BlobFolder(ledger.folder.path).read(reference.name, 400)
    ledger.folder.remove(reference.name)
    ledger.folder.file(reference.name).symlink_to("/etc/hostname")
    with pytest.raises(NotFound):
        BlobFolder(ledger.folder.path).read(reference.name, 400)
    with pytest.raises(NotFound):
        ledger.argued([task_with(reference)])


def test_results_make_room_and_arguments_do_not(ledger: BlobLedger) -> None:
    finish(ledger, accept(ledger, task_with(task_id="one")), kept(ledger, 1, writer="a1"))
    accept(ledger, task_with(kept(ledger, 2), task_id="two"))
    accept(ledger, task_with(kept(ledger, 3), task_id="three"))
    assert files(ledger) == 2
    with pytest.raises(ResourceExhausted, match="no room") as full:
        accept(ledger, task_with(kept(ledger, 4), task_id="four"))
    assert full.value.retry_after_seconds > 0


def test_a_restart_finds_what_unfinished_tasks_need(ledger: BlobLedger, clock: HandClock) -> None:
    needed, other = kept(ledger, 1), kept(ledger, 2)
    task = accept(ledger, task_with(needed))
    killed(ledger)
    again = BlobLedger(CONFIG, ledger.folder.path, clock)
    again.open([task])
    assert again.bytes == 800
    assert swept(again, clock, 200) == 1
    assert again.folder.size(needed.name) == 400
    assert again.folder.size(other.name) == -1


def test_a_scheduler_that_ends_leaves_what_its_tasks_need_and_no_empty_folder(ledger: BlobLedger) -> None:
    reference = kept(ledger, 1)
    ledger.close(forget=False)
    assert ledger.folder.size(reference.name) == 400
    ledger.folder.remove(reference.name)
    ledger.close(forget=False)
    assert not ledger.folder.path.exists()


def test_a_scheduler_whose_tasks_end_with_it_leaves_nothing_not_even_what_killed_writers_left(
    ledger: BlobLedger,
) -> None:
    kept(ledger, 1)
    private_file(ledger.folder.path).write_bytes(b"half of a blob")
    ledger.close(forget=True)
    assert not ledger.folder.path.exists()


def test_a_scheduler_whose_tasks_stay_leaves_no_folder_for_what_a_killed_writer_left(ledger: BlobLedger) -> None:
    private_file(ledger.folder.path).write_bytes(b"half of a blob")
    ledger.close(forget=False)
    assert not ledger.folder.path.exists()


@pytest.mark.parametrize("forget", [True, False])
def test_a_folder_goes_although_somebody_writes_there_while_it_goes(
    ledger: BlobLedger, forget: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir, late = os.rmdir, list[Path]()

    def racing(path: Path) -> None:
        if len(late) < 3:
            late.append(private_file(ledger.folder.path))
            late[-1].write_bytes(b"half of a blob")
        rmdir(path)

    monkeypatch.setattr(os, "rmdir", racing)
    ledger.close(forget=forget)
    assert (len(late), ledger.folder.path.exists()) == (3, False)


def test_only_a_process_that_sees_the_proof_shares_the_folder(ledger: BlobLedger) -> None:
    terms, blobs = ledger.terms("c"), Blobs()
    assert not blobs.share(terms.folder, "another", "c", 1, 100)
    assert blobs.share(terms.folder, terms.proof, "c", 1, 100)
    with pytest.raises(InvalidInput, match="largest_bytes"):
        blobs.keep(np.zeros(101, np.uint8), "1")
    reference = blobs.keep(np.arange(4.0), "1")
    array = blobs.load(reference)
    assert array.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert not array.flags.writeable
    # An argument returned whole is not written again; a part of it is, and so is an earlier task's argument.
    assert blobs.keep(array, "2", [reference.name]) == reference
    assert blobs.keep(array[:2], "2", [reference.name]) != reference
    assert blobs.keep(array, "2", [name_of("c", "1", b"?")]) != reference
    assert blobs.keep(array, "2") != reference
    assert blobs.kept({"x": [1, 2], "y": np.array(["text"])}, "3") == {"x": [1, 2], "y": np.array(["text"])}  # type: ignore[dict-item]


def test_bytes_that_a_process_wrote_itself_come_back_unread_and_others_are_checked(tmp_path: Path) -> None:
    ours, theirs = BlobFolder(tmp_path), BlobFolder(tmp_path)
    data = bytes(range(100))
    name = name_of("clients", "a" * 12, memoryview(data))
    ours.write(name, memoryview(data))
    ours.file(name).write_bytes(bytes(100))  # forbidden, and detected only by a reader
    assert ours.read(name, 100).tobytes() == bytes(100)
    with pytest.raises(InvalidInput, match="do not match its digest"):
        theirs.read(name, 100)


@pytest.fixture
def guarded(tmp_path: Path, clock: HandClock) -> BlobLedger:
    """The ledger of a scheduler with security."""
    made = BlobLedger(CONFIG, tmp_path / "guarded", clock, strangers=True)
    made.open(())
    return made


def test_no_node_has_more_than_its_share_and_its_own_results_make_room_for_its_next(guarded: BlobLedger) -> None:
    for number in range(5):
        task = accept(guarded, task_with(task_id=f"t{number}"))
        finish(guarded, task, kept(guarded, number, size=200, writer="a1"))
    assert guarded.bytes == 400
    with pytest.raises(ResourceExhausted, match=r"by one writer are kept.*the limit is 500 \(blobs.writer_share\)"):
        guarded.check_room(501, "a1")
    # Everything that the client put is needed: nothing can make room.
    accept(guarded, task_with(kept(guarded, 9, size=400, writer="n1"), task_id="u"), "n1")
    with pytest.raises(ResourceExhausted):
        accept(guarded, task_with(kept(guarded, 10, size=200, writer="n1"), task_id="v"), "n1")


def test_a_small_writer_loses_no_result_to_a_large_one(guarded: BlobLedger) -> None:
    finish(guarded, accept(guarded, task_with(task_id="small")), kept(guarded, 1, size=100, writer="a1"))
    for number in range(2):
        task = accept(guarded, task_with(task_id=f"large{number}"))
        finish(guarded, task, kept(guarded, 10 + number, size=240, writer="a2"))
    for number in range(2):
        task = accept(guarded, task_with(task_id=f"more{number}"))
        finish(guarded, task, kept(guarded, 20 + number, size=240, writer="a3"))
    left = {task_id for blob in guarded._blobs.values() if (task_id := blob.task_id)}
    assert "small" in left
    # Clients of the whole fleet come first.
    accept(guarded, task_with(kept(guarded, 30, size=700), task_id="owner"))
    assert "small" not in {blob.task_id for blob in guarded._blobs.values()}


def test_a_result_that_names_somebody_else_s_blob_is_a_failure_unless_its_task_was_given_it(
    guarded: BlobLedger,
) -> None:
    foreign = kept(guarded, 1, writer="n1")
    result = payload_to_proto({}, {"0": foreign}).SerializeToString()
    ((_, _, taken, failure, _),) = guarded.checked([("t", 1, result, None, 0.0)], "a1", lambda *_: False)
    assert taken == b""
    assert failure is not None
    assert failure.reason == "INVALID_RESULT"
    ((_, _, taken, failure, _),) = guarded.checked([("t", 1, result, None, 0.0)], "a1", lambda *_: True)
    assert (taken, failure) == (result, None)
    own = payload_to_proto({}, {"0": kept(guarded, 2, writer="a1")}).SerializeToString()
    ((_, _, taken, failure, _),) = guarded.checked([("t", 1, own, None, 0.0)], "a1", lambda *_: False)
    assert (taken, failure) == (own, None)


@pytest.mark.parametrize("lost", ["everything", "the files"])
def test_a_folder_that_is_removed_while_it_is_used_is_made_again(
    ledger: BlobLedger, clock: HandClock, lost: str
) -> None:
    """systemd removes what a user has in shared memory when the user logs out (RemoveIPC)."""
    running, put = kept(ledger, 1, 300), kept(ledger, 2, 300)
    task = accept(ledger, task_with(running))
    ledger.hold_names([put.name], 1000, lambda name, task_id: True)
    if lost == "everything":
        shutil.rmtree(ledger.folder.path)
    else:
        for name in os.listdir(ledger.folder.path):
            with suppress(IsADirectoryError):
                (ledger.folder.path / name).unlink()
    before = lost_blobs()
    assert swept(ledger, clock, 2) == 0
    assert (ledger.bytes, lost_blobs() - before) == (0, 2)
    assert (ledger.folder.path / PROOF).read_text() == ledger.proof
    with pytest.raises(NotFound, match="no longer kept"):
        accept(ledger, task_with(put, task_id="u"))
    again = kept(ledger, 1, 300)
    accept(ledger, task_with(again, task_id="v"))
    ledger.ended([task])
    assert swept(ledger, clock, 1000) == 1
    with pytest.raises(FailedPrecondition, match="in use by another scheduler"):
        claim(ledger.folder.path)


def test_a_folder_that_somebody_else_made_in_the_meantime_is_not_used(
    ledger: BlobLedger, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(ledger.folder.path)
    ledger.folder.path.mkdir(mode=0o777)
    ledger.folder.path.chmod(0o777)
    assert swept(ledger, clock, 50) == 0
    assert "blobs_unavailable" in caplog.text
    ledger.folder.path.rmdir()
    swept(ledger, clock, 50)
    assert (ledger.folder.path / PROOF).read_text() == ledger.proof


def test_a_removed_folder_keeps_no_scheduler_from_ending(ledger: BlobLedger, caplog: pytest.LogCaptureFixture) -> None:
    shutil.rmtree(ledger.folder.path)
    ledger.close(forget=True)
    assert not ledger.folder.path.exists()
    assert "blobs_left" not in caplog.text


def lost_blobs() -> float:
    value: float = metrics.BLOBS_REMOVED.labels("lost")._value.get()
    return value
