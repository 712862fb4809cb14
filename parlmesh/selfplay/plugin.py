"""The plug-in `selfplay`: networks made for boards. Enable it with `plugins: [selfplay]`."""

from typing import TYPE_CHECKING

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec

if TYPE_CHECKING:
    from torch import nn


class _Board:
    """Builds the network. Imports torch only then, not when the plug-in is loaded."""

    takes_images = True

    def __init__(self, *, outcomes: bool = False, turned: bool = False) -> None:
        self._outcomes, self._turned = outcomes, turned

    def __call__(self, spec: PolicySpec) -> "nn.Module":
        from .board_network import BoardNetwork

        return BoardNetwork(spec, outcomes=self._outcomes, turned=self._turned)


plugin = Plugin(
    networks={"board": _Board(), "board_outcomes": _Board(outcomes=True), "board_turned": _Board(turned=True)}
)
