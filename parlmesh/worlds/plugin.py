"""The plug-in `worlds`: networks made for the worlds. Named by `plugins: [worlds]`."""

from typing import Any

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec


def _placement(spec: PolicySpec) -> Any:
    # torch is imported by whoever builds a network, not by whoever names the plug-in.
    from .placement.network import PlacementNetwork

    return PlacementNetwork(spec)


plugin = Plugin(networks={"placement": _placement})
