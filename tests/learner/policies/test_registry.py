import pytest

from learner.policies import registry as registry_module
from learner.policies.registry import PolicyRegistry
from parlmesh.errors import NotFound


def test_of_large_policies_fewer_versions_are_kept(monkeypatch):
    monkeypatch.setattr(registry_module, "_KEPT_BYTES", 1_000)
    registry = PolicyRegistry("run")
    for version in range(1, 11):
        registry.publish(version, bytes(100))
    assert registry.find(1) is not None
    for version in range(11, 21):
        registry.publish(version, bytes(200))
    assert registry.find(15) is None
    assert registry.find(16) is not None
    with pytest.raises(NotFound, match="version 15 is not kept; there are 16 to 20"):
        registry.get("", 15)


def test_the_newest_few_are_kept_however_large_they_are(monkeypatch):
    monkeypatch.setattr(registry_module, "_KEPT_BYTES", 1_000)
    registry = PolicyRegistry("run")
    for version in range(1, 11):
        registry.publish(version, bytes(5_000))
    assert [version for version in range(1, 11) if registry.find(version)] == [7, 8, 9, 10]
