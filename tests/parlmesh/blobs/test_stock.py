"""Spares are bounded in bytes, files and time, and their memory is given back."""

import os
from pathlib import Path

import numpy as np
import pytest

from parlmesh.blobs import BlobFolder, name_of
from parlmesh.blobs import stock as stock_module
from parlmesh.blobs.spares import SPARES
from parlmesh.blobs.stock import Stock
from parlmesh.testing.clocks import HandClock

SIZE = 1 << 20


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def stock(tmp_path: Path, clock: HandClock) -> Stock:
    made = Stock(tmp_path, seconds=60.0, clock=clock)
    made.open(4 * SIZE)
    return made


def removed(stock: Stock, folder: Path, fill: int, size: int = SIZE) -> None:
    data = np.full(size, fill, np.uint8).data
    name = name_of("c", "1", data)
    file = BlobFolder(folder).file(name)
    file.write_bytes(data)
    stock.add(file, size)
    assert not file.exists()


def spares(folder: Path) -> list[os.stat_result]:
    return [entry.stat() for entry in (folder / SPARES).iterdir()]


def test_it_never_holds_more_bytes_or_files_than_it_may(
    stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fill in range(20):
        removed(stock, tmp_path, fill)
        assert stock.bytes == sum(found.st_size for found in spares(tmp_path)) <= 4 * SIZE
    assert len(spares(tmp_path)) == 4
    monkeypatch.setattr(stock_module, "_MOST_FILES", 2)
    removed(stock, tmp_path, 100)
    assert len(spares(tmp_path)) == 2


def test_files_too_small_or_larger_than_the_stock_are_not_kept(stock: Stock, tmp_path: Path) -> None:
    removed(stock, tmp_path, 1, size=4096)
    removed(stock, tmp_path, 2, size=4 * SIZE + 1)
    assert (spares(tmp_path), stock.bytes) == ([], 0)
    stock.add(tmp_path / "gone", SIZE)
    assert stock.bytes == 0


def test_what_writers_took_is_not_counted(stock: Stock, tmp_path: Path) -> None:
    for fill in range(4):
        removed(stock, tmp_path, fill)
    data = np.full(SIZE, 9, np.uint8).data
    BlobFolder(tmp_path).write(name_of("c", "1", data), data)
    stock.sweep()
    assert stock.bytes == 3 * SIZE


def test_spares_that_nobody_takes_are_removed_after_a_while(stock: Stock, clock: HandClock, tmp_path: Path) -> None:
    removed(stock, tmp_path, 1)
    clock.advance(50)
    removed(stock, tmp_path, 2)
    clock.advance(20)
    stock.sweep()
    assert (len(spares(tmp_path)), stock.bytes) == (1, SIZE)


def test_memory_is_given_back_although_a_process_has_the_file_mapped(stock: Stock, tmp_path: Path) -> None:
    data = np.full(SIZE, 1, np.uint8).data
    name, folder = name_of("c", "1", data), BlobFolder(tmp_path)
    folder.write(name, data)
    folder.read(name, SIZE)
    descriptor = os.open(folder.file(name), os.O_RDONLY)
    stock.add(folder.file(name), SIZE)
    stock.shrink(0)
    assert (os.fstat(descriptor).st_nlink, os.fstat(descriptor).st_blocks) == (0, 0)
    os.close(descriptor)


def test_a_file_in_use_is_removed_unchanged(stock: Stock, tmp_path: Path) -> None:
    data = np.full(SIZE, 1, np.uint8).data
    name, folder = name_of("c", "1", data), BlobFolder(tmp_path)
    folder.write(name, data)
    array = folder.read(name, SIZE)
    stock.add(folder.file(name), SIZE)
    stock.shrink(0)
    assert spares(tmp_path) == []
    assert array.tobytes() == bytes(data)


def test_the_stock_is_emptied_when_it_opens_and_closes(stock: Stock, tmp_path: Path, clock: HandClock) -> None:
    removed(stock, tmp_path, 1)
    again = Stock(tmp_path, seconds=1.0, clock=clock)
    again.open(SIZE)
    assert spares(tmp_path) == []
    removed(again, tmp_path, 2)
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_without_a_stock_nothing_is_kept(tmp_path: Path, clock: HandClock) -> None:
    none = Stock(tmp_path, seconds=1.0, clock=clock)
    none.open(0)
    removed(none, tmp_path, 1)
    none.sweep()
    none.close()
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_another_name_is_not_written_again(stock: Stock, tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(bytes(SIZE))
    copy.hardlink_to(file)
    stock.add(file, SIZE)
    assert (file.exists(), spares(tmp_path), stock.bytes) == (False, [], 0)
    (tmp_path / SPARES / "strange").touch()
    stock.sweep()
    assert copy.read_bytes() == bytes(SIZE)
