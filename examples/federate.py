"""Learn from data that never leaves its nodes: each node sends only updates, which are aggregated by their median.

python examples/federate.py
"""

import subprocess
import sys
import tempfile


def main() -> None:
    """Simulates sixteen nodes with two actor processes; with real nodes, use `parlmesh federation start`."""
    command = [sys.executable, "-m", "parlmesh.cli", "federation", "simulate", "--nodes", "16", "--rounds", "3"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--set", "rule.name=median", "--dir", folder], check=True)  # noqa: S603  # our own


if __name__ == "__main__":
    main()
