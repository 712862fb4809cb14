import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from learner.federation.model_versions import ModelFiles
from parlmesh.errors import NotFound
from parlmesh.federation.schema import ModelSchema
from parlmesh.types import Array

TENSORS: dict[str, Array] = {"w": np.arange(6, dtype=np.float32), "steps": np.array([3], np.int64)}


def two_versions(folder: Path) -> ModelFiles:
    files = ModelFiles(folder, ModelSchema.of(TENSORS), {})
    files.first(TENSORS)

    def parts() -> Iterator[memoryview]:
        yield np.ones(6, "<f4").view(np.uint8).data

    files.derive(1, parts)
    return files


def test_a_version_keeps_what_no_round_joins_and_has_the_joined_numbers_of_its_round(tmp_path: Path) -> None:
    files = two_versions(tmp_path)
    reader = files.reader(2)
    assert reader.read(2, 5).tolist() == [1.0, 1.0, 1.0]
    reader.close()
    assert files.path(2).read_bytes()[-8:] == files.path(1).read_bytes()[-8:] == np.int64(3).tobytes()


def test_an_older_version_that_is_damaged_is_refused_and_not_served_under_another_digest(tmp_path: Path) -> None:
    files = two_versions(tmp_path)
    newest, digest = files.whole(2, ""), files.whole(1, "").digest
    assert files.kept(1, newest, digest).digest == digest
    files.path(1).write_bytes(files.path(1).read_bytes()[:-1] + b"x")
    with pytest.raises(NotFound, match=r"version 1 is damaged on disk"):
        files.kept(1, newest, digest)
    with pytest.raises(NotFound, match=r"version 7 is not kept; the newest is 2"):
        files.kept(7, newest, digest)
    assert files.kept(0, newest, "") is newest


def test_a_model_that_is_cut_while_it_is_in_use_is_an_error_of_the_disk_and_makes_no_version(tmp_path: Path) -> None:
    files = two_versions(tmp_path)
    reader = files.reader(2)
    os.truncate(files.path(2), files.path(2).stat().st_size - 8 - 3)
    assert reader.read(0, 5).tolist() == [1.0] * 5
    with pytest.raises(OSError, match="cut while it was in use"):
        reader.read(0, 6)
    reader.close()
