"""Real packets between namespaces. Where that is impossible, the skip gives the reason."""

import pytest

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.mesh.lab import Lab, lacking, three_ways
from parlmesh.mesh.lab.hosts import fill
from parlmesh.mesh.lab.system_commands import command
from parlmesh.mesh.measured_mesh import Edge, mesh_of

needs_a_lab = pytest.mark.skipif(bool(lacking()), reason=f"no lab here: {lacking()}")


@needs_a_lab
async def test_packets_take_the_best_way_and_a_fault_is_what_they_meet():
    async with Lab(three_ways()) as lab:
        assert await lab.trace("ada", "dora") == ["ada", "bob", "dora"]
        assert (await lab.ping("ada", "dora", 20, 0.02)).loss == 0
        await lab.fault("loss", "ada", "bob")
        lossy = await lab.ping("ada", "dora", 60, 0.01)
        assert 0.2 < lossy.loss < 0.8
        assert await lab.dropped("ada") + await lab.dropped("bob") == lossy.sent - lossy.received
        # Another path, set by hand, avoids the fault.
        for end, other in (("ada", "dora"), ("dora", "ada")):
            target, via = lab.addresses.nodes[other], lab.addresses.nodes["cleo"]
            await lab.inside(end, "ip", "route", "replace", target, "via", via)
        assert (await lab.ping("ada", "dora", 20, 0.02)).loss == 0
        assert await lab.trace("ada", "dora") == ["ada", "cleo", "dora"]
        await lab.repair()
        await lab.route()
        assert await lab.trace("ada", "dora") == ["ada", "bob", "dora"]
    assert lab.namespace("ada") not in await command("ip", "netns")


def test_an_impossible_lab_is_refused():
    with pytest.raises(InvalidInput, match="up to 8 lowercase letters"):
        Lab(mesh_of("big", ["Node-1", "b"], [Edge("Node-1", "b", {})]))


def test_only_a_small_file_system_is_filled(tmp_path):
    with pytest.raises(InvalidInput, match="at most 64 MiB is filled"):
        fill(tmp_path)


async def test_a_command_that_fails_says_so_in_its_own_words():
    with pytest.raises(FailedPrecondition, match="ls /nowhere failed: "):
        await command("ls", "/nowhere")
    with pytest.raises(FailedPrecondition, match=r"sleep 5 took longer than 0\.05 s"):
        await command("sleep", "5", seconds=0.05)
