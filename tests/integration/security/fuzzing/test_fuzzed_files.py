"""Damages every file that a process reads: it is read or refused in one sentence, and nothing else happens."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from learner.files.checkpoint import CheckpointsGone
from parlmesh.errors import FleetError
from tests.integration.security.fuzzing import application_files, databases, fleet_files, learner_files, mesh_files
from tests.integration.security.fuzzing.file_damage import Format
from tests.integration.security.fuzzing.fuzzing_time import LENGTHS, first_seed, seconds_of
from tests.integration.security.fuzzing.messages import Fuzzer

SLOWEST_SECONDS = 5.0
LARGEST_MEMORY = 128 << 20
DEEP = b"[" * 1_100
LEAST = 20
"""Files of each format, however short the time is."""
FORMATS = [
    make
    for module in (learner_files, fleet_files, mesh_files, application_files, databases)
    for name, make in vars(module).items()
    if getattr(make, "__annotations__", {}).get("return") is Format and not name.startswith("_")
]


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the log lines of refusals, which would come a thousand times."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def memory(what: str) -> int:
    """Bytes that this process holds (VmRSS), or its peak since the last reset (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{what}:")).split()[1]) << 10


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_an_endlessly_nested_file_is_refused_or_skipped(tmp_path: Path, make: Callable[[Path], Format]) -> None:
    found = make(tmp_path)
    found.file.write_bytes(DEEP)
    with quiet(), suppress(FleetError, CheckpointsGone):
        found.read(found.file)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path: Path, make: Callable[[Path], Format], length: str
) -> None:
    found = make(tmp_path)
    sound = found.file.read_bytes()
    found.read(found.file)
    first = seed = first_seed(length)
    refused = [""]
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    end = time.monotonic() + seconds_of("files", length) / len(FORMATS if length == "short" else [make])
    with quiet():
        while time.monotonic() < end or seed < first + LEAST:
            seed += 1
            fuzzer = Fuzzer(seed)
            found.file.write_bytes(found.damage(fuzzer, sound))
            started = time.process_time()
            try:
                found.read(found.file)
            except (FleetError, CheckpointsGone) as error:
                refused.append(str(error))
            except Exception as error:
                raise AssertionError(f"seed {seed}: {make.__name__} raises {error!r}") from error
            assert time.process_time() - started < SLOWEST_SECONDS, f"seed {seed}"
            assert len(refused[-1]) < 2000, f"seed {seed}"
            assert "\n" not in refused[-1], f"seed {seed}: {refused[-1]}"
    assert memory("VmHWM") - before <= LARGEST_MEMORY
    print(f"{make.__name__}: {seed - first} files, {len(refused) - 1} refused")
