import hashlib

from parlmesh.distribution.policy_messages import Published
from parlmesh.relay.held_policies import Shelf
from parlmesh.types import PolicyBlob


def published(version, size=100, uid="u"):
    data = bytes([version]) * size
    return Published(PolicyBlob("run", version, hashlib.sha256(data).digest(), data, uid), 0.0)


def versions(shelf):
    return [version for version in range(1, 10) if shelf.version("run", "u", version)]


def test_the_least_recently_requested_policy_makes_room():
    shelf = Shelf(300)
    for version in (1, 2, 3):
        shelf.put(published(version))
    assert shelf.find(published(1).blob.digest) is shelf.version("run", "u", 1)
    shelf.put(published(4))
    assert versions(shelf) == [1, 3, 4]
    assert (len(shelf), shelf.size_bytes) == (3, 300)


def test_the_last_policy_stays_whatever_its_size():
    shelf = Shelf(300)
    for version in (1, 2):
        shelf.put(published(version, size=1_000))
    assert versions(shelf) == [2]
    assert shelf.size_bytes == 1_000


def test_the_same_policy_is_held_once():
    shelf = Shelf(300)
    for _ in range(3):
        shelf.put(published(1))
    assert shelf.size_bytes == 100


def test_a_version_is_a_base_only_where_its_run_is_known_for_sure():
    shelf = Shelf(300)
    shelf.put(published(1))
    shelf.put(published(2, uid=""))
    assert shelf.version("run", "u", 1) is shelf.newest("run", "u")
    assert shelf.version("run", "", 2) is None
    assert shelf.version("run", "other", 1) is None
