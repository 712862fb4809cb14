"""Files are overwritten, and a reader of a blob never sees another."""

import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from parlmesh.blobs import BlobFolder, name_of
from parlmesh.blobs import folder as folder_module
from parlmesh.blobs.spares import SPARES, is_left, private_file, private_files
from parlmesh.blobs.stock import Stock
from parlmesh.errors import FleetError, InvalidInput, NotFound, ResourceExhausted
from parlmesh.types import Array

SIZE = 1 << 20


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    made = Stock(tmp_path, seconds=60.0, clock=time.monotonic)
    made.open(16 * SIZE)
    return made


@pytest.fixture
def writer(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path)


def content(number: int, size: int = SIZE) -> Array:
    data = np.full(size, number % 251, np.uint8)
    data[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
    return data


def written(folder: BlobFolder, number: int, size: int = SIZE) -> str:
    data = content(number, size).data
    name = name_of("c", "1", data)
    folder.write(name, data)
    return name


def given_up(stock: Stock, folder: BlobFolder, name: str) -> None:
    stock.add(folder.file(name), folder.size(name))


def inode(folder: BlobFolder, name: str) -> int:
    return folder.file(name).stat().st_ino


def test_the_file_of_a_removed_blob_is_written_again(stock: Stock, writer: BlobFolder, tmp_path: Path) -> None:
    reader = BlobFolder(tmp_path)
    files = set()
    for number in range(10):
        name = written(writer, number)
        assert np.array_equal(reader.read(name, SIZE), content(number))
        files.add(inode(writer, name))
        given_up(stock, writer, name)
        with pytest.raises(NotFound, match="no longer kept"):
            reader.read(name, SIZE)
    assert len(files) == 1


def test_an_array_in_use_stays_the_same_whatever_is_written_later(
    stock: Stock, writer: BlobFolder, tmp_path: Path
) -> None:
    name = written(writer, 1)
    held, file = BlobFolder(tmp_path).read(name, SIZE).view(np.float64).reshape(4, -1)[1:3].T, inode(writer, name)
    before = held.copy()
    given_up(stock, writer, name)
    for number in range(2, 30):
        other = written(writer, number)
        assert inode(writer, other) != file
        given_up(stock, writer, other)
        assert np.array_equal(held, before)
    del held
    seen = {inode(writer, written(writer, number)) for number in range(30, 34)}
    assert file in seen, "nobody looks any more"


def test_a_forked_process_keeps_seeing_what_its_parent_released(
    stock: Stock, writer: BlobFolder, tmp_path: Path
) -> None:
    name = written(writer, 1)
    array, file = BlobFolder(tmp_path).read(name, SIZE), inode(writer, name)
    go_read, go_write = os.pipe()
    child = os.fork()
    if not child:
        os.close(go_write)
        os.read(go_read, 1)
        os._exit(0 if np.array_equal(array, content(1)) else 1)
    os.close(go_read)
    del array
    given_up(stock, writer, name)
    assert inode(writer, written(writer, 2)) != file
    os.close(go_write)
    assert os.waitpid(child, 0)[1] == 0
    assert inode(writer, written(writer, 3)) == file


def test_a_process_that_is_forked_while_a_file_is_written_again_keeps_no_lock_on_it(
    stock: Stock, writer: BlobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(stock, writer, written(writer, 1))
    end, begin = os.pipe()
    children = []

    def forking(target: Array, source: Array) -> None:
        if not (child := os.fork()):
            os.close(begin)
            os.read(end, 1)
            os._exit(0)
        children.append(child)
        target[:] = source

    monkeypatch.setattr(np, "copyto", forking)
    name = written(writer, 2)
    monkeypatch.undo()
    assert len(children) == 1
    assert np.array_equal(BlobFolder(tmp_path).read(name, SIZE), content(2))
    os.close(begin)
    os.waitpid(children[0], 0)
    os.close(end)


@pytest.mark.parametrize(("held", "wanted"), [(SIZE, SIZE - 5), (2 * SIZE, SIZE), (SIZE, SIZE)])
def test_a_spare_gets_the_exact_size_of_the_blob(stock: Stock, writer: BlobFolder, held: int, wanted: int) -> None:
    first = written(writer, 1, held)
    file = inode(writer, first)
    given_up(stock, writer, first)
    second = written(writer, 2, wanted)
    assert (inode(writer, second), writer.size(second)) == (file, wanted)
    assert writer.file(second).read_bytes() == content(2, wanted).tobytes()


@pytest.mark.parametrize("held", [SIZE - 1, 2 * SIZE + 1])
def test_a_spare_that_is_too_small_or_much_too_large_is_left_alone(stock: Stock, writer: BlobFolder, held: int) -> None:
    first = written(writer, 1, held)
    file = inode(writer, first)
    given_up(stock, writer, first)
    assert inode(writer, written(writer, 2)) != file


def test_a_file_that_became_another_blob_is_checked_again(stock: Stock, writer: BlobFolder, tmp_path: Path) -> None:
    reader, forger = BlobFolder(tmp_path), BlobFolder(tmp_path)
    name = written(writer, 1)
    file = inode(writer, name)
    reader.read(name, SIZE)
    given_up(stock, writer, name)
    forged = name_of("c", "1", content(2).data)
    forger.write(forged, content(3).data)
    assert inode(writer, forged) == file
    with pytest.raises(InvalidInput, match="digest"):
        reader.read(forged, SIZE)
    # Also under the name it had when it was checked.
    given_up(stock, writer, forged)
    forger.write(name, content(3).data)
    assert inode(writer, name) == file
    with pytest.raises(InvalidInput, match="digest"):
        reader.read(name, SIZE)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """The usual limit of a process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_held_array_costs_one_descriptor_and_a_file_that_is_only_mapped_none(
    stock: Stock, writer: BlobFolder, tmp_path: Path
) -> None:
    reader, before = BlobFolder(tmp_path), descriptors()
    names = [written(writer, number) for number in range(20)]
    arrays = [reader.read(name, SIZE) for name in names]
    assert descriptors() - before == 20
    arrays.clear()
    assert descriptors() == before
    for name in names:
        given_up(stock, writer, name)
    for number in range(20, 30):
        written(writer, number)
    assert descriptors() == before


def test_two_fleets_with_400_arrays_each_leave_descriptors_for_others(tmp_path: Path, few_descriptors: None) -> None:
    held = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        writer, reader = (BlobFolder(tmp_path / str(number)) for _ in range(2))
        names = [written(writer, each, 4096) for each in range(400)]
        held += [(each, reader.read(name, 4096)) for each, name in enumerate(names)]
    assert descriptors() < 700
    assert all(np.array_equal(array, content(each, 4096)) for each, array in held)
    assert not any(array.flags.writeable for _, array in held)


def test_lack_of_descriptors_is_reported_and_not_that_the_array_is_gone(
    writer: BlobFolder, few_descriptors: None
) -> None:
    name, taken = written(writer, 1), []
    try:
        while True:
            try:
                taken.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        with pytest.raises(ResourceExhausted, match=r"cannot be mapped: Too many open files; .*\(ulimit\)"):
            writer.read(name, SIZE)
    finally:
        for each in taken:
            os.close(each)
    assert np.array_equal(writer.read(name, SIZE), content(1))


@pytest.mark.parametrize("held_meanwhile", [True, False])
def test_without_spares_a_removed_blob_leaves_memory_as_soon_as_nobody_reads_it(
    tmp_path: Path, held_meanwhile: bool
) -> None:
    none = Stock(tmp_path, seconds=60.0, clock=time.monotonic)
    writer, reader = BlobFolder(tmp_path), BlobFolder(tmp_path)
    name = written(writer, 1)
    array, descriptor = reader.read(name, SIZE), os.open(writer.file(name), os.O_RDONLY)
    assert os.fstat(descriptor).st_ino in reader._read
    if not held_meanwhile:
        del array
    given_up(none, writer, name)
    assert writer.size(name) == -1
    if held_meanwhile:
        assert np.array_equal(array, content(1))
        assert os.fstat(descriptor).st_blocks > 0
        del array
        assert os.fstat(descriptor).st_ino not in reader._read
    else:
        assert os.fstat(descriptor).st_blocks == 0
    os.close(descriptor)


def test_a_folder_full_of_unsuitable_spares_still_has_room(
    stock: Stock, writer: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(stock, writer, written(writer, 1, 4 * SIZE))
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if any((writer.path / SPARES).iterdir()):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    assert np.array_equal(writer.read(written(writer, 2), SIZE), content(2))


def test_a_file_being_written_is_distinguished_from_what_a_killed_writer_left(
    writer: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, left = os.write, list[bool]()

    def looking(descriptor: int, data: bytes) -> int:
        left.extend(is_left(file) for file in private_files(writer.path))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", looking)
    written(writer, 1)
    assert left == [False]
    file = private_file(writer.path)
    file.touch()
    assert is_left(file)


def test_a_thousand_arrays_that_are_held_leave_descriptors_for_others(tmp_path: Path, few_descriptors: None) -> None:
    writer, reader = BlobFolder(tmp_path), BlobFolder(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    arrays = [reader.read(written(writer, number, 1000), 1000) for number in range(1000)]
    assert len(os.listdir("/proc/self/fd")) - before < 600
    assert all(np.array_equal(array, content(number, 1000)) for number, array in enumerate(arrays))
    assert not any(array.flags.writeable for array in arrays)
    arrays.clear()
    assert len(os.listdir("/proc/self/fd")) - before < 100


def test_an_array_copied_for_lack_of_descriptors_needs_no_file(
    stock: Stock, writer: BlobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "most_held", lambda: 0)
    name = written(writer, 1)
    file, array = inode(writer, name), BlobFolder(tmp_path).read(name, SIZE)
    given_up(stock, writer, name)
    assert inode(writer, written(writer, 2)) == file
    assert np.array_equal(array, content(1))


KILLED = """
import os, signal, sys
from pathlib import Path
from parlmesh.blobs import folder
import numpy as np
def half(target, source):
    target[: len(target) // 2] = source[: len(target) // 2]
    os.kill(os.getpid(), signal.SIGKILL)
np.copyto = half
folder.BlobFolder(Path(sys.argv[1])).write(sys.argv[2], memoryview(bytes(int(sys.argv[3]))))
"""


def test_a_writer_that_is_killed_leaves_nothing_that_is_ever_read(
    stock: Stock, writer: BlobFolder, tmp_path: Path
) -> None:
    first = written(writer, 1)
    file = inode(writer, first)
    given_up(stock, writer, first)
    name = name_of("c", "1", memoryview(bytes(SIZE)))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), name, str(SIZE)], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = [entry for entry in tmp_path.iterdir() if entry.is_file()]
    assert (left.stat().st_ino, left.name[0]) == (file, ".")
    assert time.time() - left.stat().st_mtime < 60, "it is swept by its age"
    with pytest.raises(NotFound):
        writer.read(name, SIZE)
    assert inode(writer, written(writer, 2)) != file


READER = """
import json, os, sys
from collections import deque
from pathlib import Path
from parlmesh.blobs import BlobFolder
from parlmesh.blobs.references import digest_of
from parlmesh.errors import NotFound
path, size = Path(sys.argv[1]), int(sys.argv[2])
folder, held, counts = BlobFolder(path), deque(), {"read": 0, "gone": 0}
print("ready", flush=True)
while not (path / ".stop").exists():
    for file in os.listdir(path):
        if file[0] == ".":
            continue
        try:
            held.append((file, folder.read("blob:" + file, size)))
            counts["read"] += 1
        except NotFound:
            counts["gone"] += 1
        if len(held) > 3:
            name, array = held.popleft()
            assert name.endswith(digest_of(array.data)), "it changed while it was held"
print(json.dumps(counts))
"""


def test_a_reader_that_races_writers_gets_the_right_bytes_or_none(
    stock: Stock, writer: BlobFolder, tmp_path: Path
) -> None:
    size = 512 << 10
    command = [sys.executable, "-c", READER, str(tmp_path), str(size)]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    files, names = set(), list[str]()
    for number in range(1500):
        names.append(written(writer, number, size))
        files.add(inode(writer, names[-1]))
        if len(names) > 3:
            given_up(stock, writer, names.pop(0))
    (tmp_path / ".stop").touch()
    counts = [json.loads(reader.communicate(timeout=60)[0]) for reader in readers]
    assert [reader.returncode for reader in readers] == [0, 0]
    assert len(files) < 1000, "files were written again"
    assert all(count["read"] > 10 for count in counts)


def test_a_file_renamed_between_opening_and_locking_is_gone_or_right(
    stock: Stock, writer: BlobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, reader = written(writer, 1), BlobFolder(tmp_path)
    file, lock, later = inode(writer, name), fcntl.flock, list[str]()
    reader.read(name, SIZE)  # it is mapped and checked now

    def late(descriptor: int, operation: int) -> None:
        if not later:
            later.append("")
            given_up(stock, writer, name)
            later.append(written(writer, 2))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(FleetError) as gone:
        reader.read(name, SIZE)
    assert gone.value.reason == "BLOB_GONE"
    assert inode(writer, later[1]) == file


def test_a_pipe_in_the_place_of_a_blob_holds_nobody_up(writer: BlobFolder, tmp_path: Path) -> None:
    """Opening one waits for a writer, for ever."""
    name, left = written(writer, 1), private_file(tmp_path)
    writer.remove(name)
    for file in (writer.file(name), left):
        os.mkfifo(file)
    found: list[object] = []

    def read() -> None:
        with pytest.raises(NotFound, match="no longer kept"):
            BlobFolder(tmp_path).read(name, SIZE)
        found.append(is_left(left))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert found == [True]
