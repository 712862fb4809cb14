"""A fleet in a Ray cluster of two nodes: it trains, outlives a node, and leaves no process behind.

Ray is no dependency: it is looked for here and in `.venv-peers/ray` (uv venv, then uv pip install ray).
"""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
PEER = ROOT / ".venv-peers" / "ray" / "bin" / "python"
SECONDS = 800.0


def interpreter() -> Path:
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable)
    if not PEER.exists():
        pytest.skip("ray is not installed, neither here nor in .venv-peers/ray")
    return PEER


def test_a_fleet_outlives_a_node_of_its_ray_cluster_and_ends_without_a_trace(tmp_path: Path) -> None:
    packages = os.pathsep.join((str(ROOT), sysconfig.get_paths()["purelib"]))
    done = subprocess.run(
        [interpreter(), Path(__file__).parent / "ray_cluster.py", tmp_path],
        env={**os.environ, "PYTHONPATH": packages},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["doomed"], "the node that was killed had a part of the fleet"
    assert found["after"] > 0
    assert found["left"] == []
