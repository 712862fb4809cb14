"""The lab's mesh: three paths from one end to the other."""

from parlmesh.mesh.measured_mesh import Edge, Mesh, mesh_of

ENDS = ("ada", "dora")
WAYS = ("bob", "cleo", "emil")
"""Middle hosts, best path first."""


def three_ways() -> Mesh:
    """ada and dora, with bob, cleo and emil between them, in order of increasing latency."""
    edges = []
    for place, middle in enumerate(WAYS):
        facts = {"latency_ms": 1.0 + place, "rate_mbps": 50.0}
        edges += [Edge(end, middle, dict(facts)) for end in ENDS]
    return mesh_of("three-ways", [*ENDS, *WAYS], edges)
