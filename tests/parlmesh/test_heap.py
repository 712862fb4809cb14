"""Freed memory of a process."""

import platform
import subprocess
import sys

import pytest

# Page faults of batches of messages that are received and dropped together.
FAULTS = """
import resource, sys
if sys.argv[1] == "kept":
    from parlmesh.heap import keep_freed_memory
    keep_freed_memory()
def batch():
    for message in [b"x" * 300_000 for _ in range(32)]:
        del message
for _ in range(5):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS, how], check=True, capture_output=True, text=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_batches_of_messages_use_the_same_memory_again():
    usual, kept = faults("usual"), faults("kept")
    assert usual > 10_000
    assert kept < usual / 20
