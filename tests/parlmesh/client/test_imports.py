"""What the SDK brings along, seen in a fresh interpreter."""

import subprocess
import sys

import pytest

HEAVY = [
    "torch",
    "gymnasium",
    "safetensors",
    "matplotlib",
    "tensorboard",
    "typer",
    "rich",
    "cryptography",
    "parlmesh.cli",
]


@pytest.mark.parametrize("module", ["parlmesh.client", "parlmesh.client.sync"])
def test_importing_the_client_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.strip() == "[]"
