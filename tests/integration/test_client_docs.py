"""Every example of docs/client.md runs as written: programs alone, fragments with the controller of a running fleet."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlmesh.client.sync import Controller

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", (ROOT / "docs" / "client.md").read_text(), re.S)
PROGRAMS = [(source, output) for source, output in BLOCKS if output]
FRAGMENTS = [source for source, output in BLOCKS if not output]
FRAME = """
import asyncio
from parlmesh.client import *

async def main():
    async with PARLController("{address}") as controller:
{fragment}

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with Controller() as controller:
        controller.initialize(2)
        yield controller.address


def run(source: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("source", "output"), PROGRAMS)
def test_a_program_prints_what_it_says(source: str, output: str, tmp_path: Path) -> None:
    answer = run(source, tmp_path)
    assert (answer.returncode, answer.stdout) == (0, output), answer.stderr


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_runs(fragment: str, address: str, tmp_path: Path) -> None:
    answer = run(FRAME.format(address=address, fragment=textwrap.indent(fragment, " " * 8)), tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_there_are_examples_of_both_kinds() -> None:
    assert len(PROGRAMS) >= 2
    assert len(FRAGMENTS) >= 4
