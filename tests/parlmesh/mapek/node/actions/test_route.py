"""Routes in a network namespace of the test's own, where the system lets one be made."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from parlmesh.errors import InvalidInput
from parlmesh.mapek.node.actions.route import Route

ROOT = Path(__file__).parents[5]
PROGRAM = """
import asyncio, json, subprocess
from parlmesh.mapek.node.actions.route import Route
from parlmesh.mapek.node.settings import NodeConfig
for line in (
    "link add pa type veth peer name qa", "link add pb type veth peer name qb",
    "addr add 10.9.1.1/24 dev pa", "addr add 10.9.2.1/24 dev pb",
    "link set pa up", "link set qa up", "link set pb up", "link set qb up",
    "route add 10.8.0.0/16 via 10.9.1.2",
):
    subprocess.run(["ip", *line.split()], check=True)
wanted = {"destination": "10.8.0.0/16", "via": "10.9.2.2", "device": "pb"}
def shown():
    return subprocess.run(["ip", "route", "get", "10.8.1.1"], capture_output=True, text=True).stdout
async def main():
    before = shown()
    done = await Route().do(wanted, NodeConfig())
    after = shown()
    await Route().do(wanted, NodeConfig())
    await Route().undo(wanted, done.undo)
    print(json.dumps([before, after, shown()]))
asyncio.run(main())
"""


def _may_unshare() -> bool:
    try:
        return subprocess.run(["unshare", "-n", "ip", "link"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _may_unshare(), reason="no right to make a network namespace, or no ip command")
def test_packets_take_the_new_way_and_the_old_one_after_the_rollback():
    ended = subprocess.run(
        ["unshare", "-n", sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    before, after, undone = json.loads(ended.stdout)
    assert "via 10.9.1.2 dev pa" in before
    assert "via 10.9.2.2 dev pb" in after
    assert "via 10.9.1.2 dev pa" in undone


@pytest.mark.parametrize(
    "parameters",
    [
        {"destination": "10.8.0.0/16"},
        {"destination": "somewhere", "via": "10.0.0.1"},
        {"destination": "10.8.0.0/16", "via": "; reboot"},
        {"destination": "10.8.0.0/16", "device": "--all"},
    ],
)
def test_an_invalid_route_is_refused(parameters):
    with pytest.raises(InvalidInput):
        asyncio.run(_do(parameters))


async def _do(parameters):
    Route().target(parameters)
