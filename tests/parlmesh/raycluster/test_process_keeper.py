"""Keepers without Ray: the settings of each process of a fleet, and a keeper that keeps a real scheduler alive."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from parlmesh.raycluster.fleet import RayFleetConfig, parts
from parlmesh.raycluster.process_keeper import Host, Part
from parlmesh.testing import wait_until

PATIENCE = 60.0


def test_each_process_knows_its_peers_by_name_and_its_own_key_alone() -> None:
    names = ("scheduler", "learner", "actor-0", "actor-1")
    secrets = {name: {"ca.crt": b"", f"{name}.crt": b"", f"{name}.key": b""} for name in names}
    secrets["scheduler"]["tokens.yaml"] = b""
    found = {part.name: part for part in parts(RayFleetConfig(name="lab", slots=3, folder="/shared"), secrets)}
    assert tuple(found) == names
    assert found["actor-1"].peers == {"scheduler": "lab-scheduler", "learner": "lab-learner"}
    assert found["actor-1"].settings["slots"] == 3
    assert found["actor-1"].settings["node_id"] == "actor-1"
    assert set(found["actor-1"].files) == {"ca.crt", "actor-1.crt", "actor-1.key"}
    assert found["scheduler"].settings["security"]["tokens"] == "tokens.yaml"
    assert "tokens" not in found["learner"].settings["security"]
    assert {part.folder for part in found.values()} == {"/shared/lab"}


def test_without_certificates_that_is_said() -> None:
    insecure = parts(RayFleetConfig(secure=False), {})
    said = [part.settings["security"] for part in insecure]
    assert said == [{"insecure": True}, {"insecure": True}, {}, {}]


@pytest.mark.slow
def test_a_killed_process_comes_back_where_it_was_and_a_stopped_one_stays_away(tmp_path: Path) -> None:
    part = Part(
        "scheduler", "scheduler", {"metrics": {"port": 0}, "security": {"insecure": True}}, folder=str(tmp_path)
    )
    host = Host(part, "127.0.0.1", lambda name: "")
    try:
        address = wait_until(host.address, PATIENCE)
        first = host.standing()["pid"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: host.standing()["starts"] == 2, PATIENCE)
        second = host.standing()["pid"]
        assert host.address() == address
    finally:
        host.stop()
    assert not psutil.pid_exists(second)
    assert "SIGKILL" in host.standing()["last_end"]
