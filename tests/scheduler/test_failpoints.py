"""Failpoints are off by default, strict about their settings, and act once, at the requested pass."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scheduler import failpoints


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def test_they_are_off_unless_the_environment_says_otherwise() -> None:
    assert failpoints.VARIABLE in os.environ or not failpoints.armed


@pytest.mark.parametrize("text", ["nowhere=kill", "after_commit=explode", "after_commit", "after_commit=kill@x"])
def test_what_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"PARLMESH_FAILPOINTS|invalid literal"):
        failpoints.arm(text)
    assert not failpoints.armed


def test_an_action_takes_place_at_its_pass_and_not_again() -> None:
    failpoints.arm("after_commit=error@2; before_commit=memory")
    failpoints.hit(failpoints.AFTER_COMMIT)
    with pytest.raises(OSError, match="after_commit"):
        failpoints.hit(failpoints.AFTER_COMMIT)
    failpoints.hit(failpoints.AFTER_COMMIT)
    with pytest.raises(MemoryError):
        failpoints.hit(failpoints.BEFORE_COMMIT)
    assert failpoints.passed == {"after_commit": 3, "before_commit": 1}


def test_a_process_is_killed_where_its_environment_says() -> None:
    code = "from scheduler import failpoints as f; f.hit(f.AFTER_COMMIT); print(1, flush=True); f.hit(f.AFTER_COMMIT)"
    environment = {**os.environ, failpoints.VARIABLE: "after_commit=kill@2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == (b"1\n", -9)
