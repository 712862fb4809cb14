"""A Ray cluster of two nodes on this machine, for tests/e2e/machines/test_ray.py; run by an interpreter that has Ray.

Prints one JSON line. The fleet is placed and ended by `parlmesh ray` as a user types it.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from ray.cluster_utils import Cluster

PATIENCE = 240.0


def parlmesh(*arguments: str) -> str:
    command = [sys.executable, "-m", "parlmesh.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, f"{arguments}: {done.stdout} {done.stderr[-3000:]}"
    return done.stdout


def standings() -> dict[str, Any]:
    lines = parlmesh("ray", "status", "--json").splitlines()
    return {found["name"]: found for found in map(json.loads, lines)}


def until(predicate: Any) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := predicate()):
        assert time.monotonic() < deadline, predicate
        time.sleep(0.5)
    return found


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def main(folder: Path) -> None:
    # Either node has room for the whole fleet; the head cannot be killed.
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    other = cluster.add_node(num_cpus=3)
    os.environ["RAY_ADDRESS"] = cluster.address
    certificates = folder / "certs"
    settings = [
        "actors=2",
        f"folder={folder / 'shared'}",
        "training.goal_return=null",
        "training.step_budget=1000000000",
    ]
    settings += ["training.checkpoint_interval_versions=5", "training.max_failed_rollouts=1000"]

    def steps(address: str) -> int:
        secure = ["--ca", str(certificates / "ca.crt"), "--token-file", str(certificates / "operator.token")]
        line = parlmesh(*secure, "train", "list", "--learner", address, "--json").splitlines()[0]
        return int(json.loads(line).get("progress", {}).get("steps", 0))

    def all_there() -> dict[str, Any] | None:
        found = standings()
        whole = len(found) == 4 and all(each["pid"] for each in found.values())
        return found if whole and found["learner"]["address"] else None

    def trains() -> int:
        address = until(all_there)["learner"]["address"]
        before = until(lambda: steps(address))
        return int(until(lambda: (now := steps(address)) > before and now))

    try:
        up = ["ray", "up", "--json", "--certificates", str(certificates)]
        parlmesh(*up, *(part for each in settings for part in ("--set", each)))
        placed = until(all_there)
        before = trains()
        doomed = {name for name, each in placed.items() if each["node_id"] == other.node_id}
        cluster.remove_node(other, allow_graceful=False)
        for name in doomed:
            until(lambda pid=placed[name]["pid"]: ended(pid))
        after = trains()
        pids = [each["pid"] for each in (*placed.values(), *standings().values())]
        parlmesh("ray", "down")
        found = {"doomed": sorted(doomed), "before": before, "after": after}
        print(json.dumps({**found, "left": [pid for pid in pids if not ended(pid)]}))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
