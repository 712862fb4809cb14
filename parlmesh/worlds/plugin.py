"""The plug-in `worlds`: networks made for the worlds. Enable it with `plugins: [worlds]`."""

from typing import Any

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec


def _placement(spec: PolicySpec) -> Any:
    # Imports torch only when a network is built, not when the plug-in is loaded.
    from .placement.network import PlacementNetwork

    return PlacementNetwork(spec)


plugin = Plugin(networks={"placement": _placement})
