"""The loop heals a mesh of namespaces that carries real packets."""

import pytest

from parlmesh.cli.applications.lab import CYCLES, FAULTS, FleetInLab
from parlmesh.mesh.lab import Pings, lacking

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(lacking()), reason=f"no lab here: {lacking()}"),
]


async def test_every_fault_is_healed_within_two_cycles_and_nothing_is_done_before():
    said: list[str] = []
    async with FleetInLab.opened(said.append) as fleet:
        found = {fault: await fleet.heal(fault, said.append) for fault in FAULTS}
    for fault, healing in found.items():
        assert 0 < healing.cycles <= CYCLES, "\n".join(said)
        assert not [line for line in healing.decisions if line.startswith("without")]
        if isinstance(healing.during, Pings):
            assert healing.before.loss == 0
            assert healing.path_before == ["ada", "bob", "dora"]
            assert healing.during.loss > 0.15 or healing.during.mean_ms > 20, fault
            assert healing.after.loss <= 0.02
            assert "bob" not in healing.path_after
        else:
            assert healing.during > 0.9
            assert healing.after < 0.5
