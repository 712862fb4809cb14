"""A test mesh: hosts in network namespaces on this machine, joined by veth pairs."""

from .hosts import Lab, Pings, lacking
from .lab_topology import three_ways

__all__ = ["Lab", "Pings", "lacking", "three_ways"]
