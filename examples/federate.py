"""Learn from data that never leaves its nodes: each has its own, only updates travel, and a median joins them.

python examples/federate.py
"""

import subprocess
import sys
import tempfile


def main() -> None:
    """Sixteen nodes that two actor processes stand for; on real ones the command is `parlmesh federation start`."""
    command = [sys.executable, "-m", "parlmesh.cli", "federation", "simulate", "--nodes", "16", "--rounds", "3"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--set", "rule.name=median", "--dir", folder], check=True)  # noqa: S603  # our own


if __name__ == "__main__":
    main()
