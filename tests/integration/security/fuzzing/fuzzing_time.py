"""Fuzzing time: a minute in total in the short tests, shared among the targets, and five minutes per target at
night."""

import os
import time

import pytest

NIGHTLY_SECONDS = 300.0
SHARES = {"calls": 0.1, "records": 0.05, "files": 0.85}
LENGTHS = ["short", pytest.param("nightly", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


def seconds_of(target: str, length: str) -> float:
    """Seconds per target; PARLMESH_FUZZ_SECONDS is the total for all targets of the short tests."""
    if length == "nightly":
        return NIGHTLY_SECONDS
    return SHARES[target] * float(os.environ.get("PARLMESH_FUZZ_SECONDS", "60"))


def first_seed(length: str) -> int:
    """A fixed seed in the short tests; at night a new one each time, or PARLMESH_FUZZ_SEED."""
    return int(os.environ.get("PARLMESH_FUZZ_SEED", "1" if length == "short" else str(time.time_ns() % 10**9)))
