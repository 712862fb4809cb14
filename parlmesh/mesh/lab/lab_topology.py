"""The mesh of the lab: three ways from one end to the other."""

from parlmesh.mesh.measured_mesh import Edge, Mesh, mesh_of

ENDS = ("ada", "dora")
WAYS = ("bob", "cleo", "emil")
"""The best way first."""


def three_ways() -> Mesh:
    """ada and dora, with bob, cleo and emil between them; the longer the name's place, the longer the way."""
    edges = []
    for place, middle in enumerate(WAYS):
        facts = {"latency_ms": 1.0 + place, "rate_mbps": 50.0}
        edges += [Edge(end, middle, dict(facts)) for end in ENDS]
    return mesh_of("three-ways", [*ENDS, *WAYS], edges)
