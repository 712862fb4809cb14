"""`parlmesh bench train`, as a user types it."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize(
    ("mode", "more"),
    [(("--actors", "1"), ("loop and gRPC", "transport")), (("--serial",), ())],
    ids=["fleet", "serial"],
)
def test_a_profile_names_the_phases_of_learner_and_actor(mode, more):
    command = [sys.executable, "-m", "parlmesh.cli", "bench", "train", "--profile", "--steps", "200000", *mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert "trained steps/s" in done.stdout
    # Those that always take more than the share below which nothing is shown.
    for phase in ("update", "prepare", "act", "environment step", *more):
        assert phase in done.stdout, done.stdout
