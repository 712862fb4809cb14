"""The plug-in `selfplay`: networks made for boards. Named by `plugins: [selfplay]`."""

from typing import TYPE_CHECKING

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec

if TYPE_CHECKING:
    from torch import nn


class _Board:
    """Builds the network; torch is imported by whoever builds one, not by whoever names the plug-in."""

    takes_images = True

    def __init__(self, *, outcomes: bool) -> None:
        self._outcomes = outcomes

    def __call__(self, spec: PolicySpec) -> "nn.Module":
        from .board_network import BoardNetwork

        return BoardNetwork(spec, outcomes=self._outcomes)


plugin = Plugin(networks={"board": _Board(outcomes=False), "board_outcomes": _Board(outcomes=True)})
