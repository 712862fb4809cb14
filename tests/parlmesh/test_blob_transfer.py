"""The folder in which a host keeps arrays of a scheduler elsewhere: anybody can foresee its name."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from parlmesh import blob_transfer
from parlmesh.blob_transfer import Exchange
from parlmesh.errors import FleetError
from parlmesh.v1.blob_service_pb2 import BlobTerms

TERMS = BlobTerms(folder="/nowhere", proof="x", writer="c", least_bytes=1024, largest_bytes=1 << 20)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setattr(blob_transfer, "place_for_blobs", lambda: place)
    return place / f"parlmesh-{os.getuid()}-cache-{sha256(b'host:1').hexdigest()[:16]}"


def agreed() -> Exchange:
    stub: Any = None
    exchange = Exchange(stub, "host:1", cache_bytes=1, call_seconds=1.0, keeps_results=True)
    exchange.agree(TERMS)
    return exchange


def test_a_cache_is_private_and_is_found_again(cache: Path) -> None:
    for _ in range(2):
        folder = agreed().blobs.folder
        assert folder is not None
        assert folder.path == cache
    assert cache.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["link", "dangling link", "open folder", "readable folder", "file"])
def test_what_somebody_planted_in_place_of_the_cache_is_refused(cache: Path, tmp_path: Path, planted: str) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    (mine / "chapter").write_bytes(bytes(1000))
    if planted == "link":
        cache.symlink_to(mine)
    elif planted == "dangling link":
        cache.symlink_to(tmp_path / "nothing")
    elif planted == "file":
        cache.write_bytes(b"x")
    else:
        cache.mkdir()
        cache.chmod(0o777 if planted == "open folder" else 0o750)
    with pytest.raises(FleetError, match="must be a folder that this user alone may use") as refused:
        agreed()
    assert refused.value.reason == "BLOB_FOLDER"
    assert (mine / "chapter").exists()
