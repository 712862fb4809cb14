"""How long is fuzzed: a minute in all in the short tests, shared out over the targets, and five for each at night."""

import os
import time

import pytest

NIGHTLY_SECONDS = 300.0
SHARES = {"calls": 0.1, "records": 0.05, "files": 0.85}
LENGTHS = ["short", pytest.param("nightly", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]


def seconds_of(target: str, length: str) -> float:
    """PARLMESH_FUZZ_SECONDS is what all targets of the short tests have together."""
    if length == "nightly":
        return NIGHTLY_SECONDS
    return SHARES[target] * float(os.environ.get("PARLMESH_FUZZ_SECONDS", "60"))


def first_seed(length: str) -> int:
    """The same for the short tests; at night another each time, or PARLMESH_FUZZ_SEED."""
    return int(os.environ.get("PARLMESH_FUZZ_SEED", "1" if length == "short" else str(time.time_ns() % 10**9)))
