"""Tools that may be missing: a test that needs one is skipped and names it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def tool() -> Callable[[str], Run]:
    def find(name: str) -> Run:
        found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
        if found is None:
            pytest.skip(f"{name} is not installed here")

        def run(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
            command = [found, *map(str, arguments)]
            return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)  # type: ignore[call-overload,no-any-return]

        return run

    return find
