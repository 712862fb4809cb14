import os
from pathlib import Path

import pytest

from parlmesh.errors import ConfigError
from parlmesh.processes.cpu_wakefulness import Wakefulness
from parlmesh.testing import wait_until_async


def held(device: Path) -> bool:
    return any(Path(f"/proc/self/fd/{file}").resolve() == device for file in os.listdir("/proc/self/fd"))


def size(device: Path) -> int:
    return device.stat().st_size


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """What the kernel would read."""
    path = tmp_path / "latency"
    path.touch()
    return path


async def test_the_request_is_held_during_activity_and_dropped_afterwards(device: Path) -> None:
    wakefulness = Wakefulness(0.02, device)
    assert not held(device)
    wakefulness.touch()
    assert held(device)
    assert size(device) == 4
    await wait_until_async(lambda: not held(device), 60)
    wakefulness.touch()
    assert held(device)
    wakefulness.close()
    assert not held(device)


def test_zero_seconds_request_nothing(device: Path) -> None:
    wakefulness = Wakefulness(0.0, device)
    wakefulness.touch()
    assert not wakefulness.holds
    assert size(device) == 0


def test_a_request_that_is_not_permitted_is_refused_at_the_start(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ConfigError, match=rf"awake_seconds is 1, .* {missing}: no such file or directory"):
        Wakefulness(1.0, missing)
