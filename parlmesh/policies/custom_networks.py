"""Networks from plug-ins, by name. A policy's specification names one; learner and actors build it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from parlmesh.errors import ConfigError

from .convolutions import CONVOLUTIONS

if TYPE_CHECKING:
    from torch import nn

    from .policy_spec import PolicySpec

NetworkFactory: TypeAlias = "Callable[[PolicySpec], nn.Module]"
"""Makes a torch module from features [B, observation_size] to outputs [B, action.outputs] and values [B]. If the
factory's attribute `takes_images` is true, the module gets raw observations [B, C, H, W], possibly bytes."""

BUILT_IN = ("mlp", "recurrent", *CONVOLUTIONS, "tabular")

_installed: dict[str, NetworkFactory] = {}


def install_network(name: str, build: NetworkFactory) -> None:
    """Registers a network in this process."""
    if name in BUILT_IN or _installed.get(name, build) is not build:
        raise ConfigError(f"network {name!r} exists already; choose another name")
    _installed[name] = build


def network_names() -> tuple[str, ...]:
    """All networks that a specification may name in this process."""
    return (*BUILT_IN, *sorted(_installed))


def takes_images(name: str) -> bool:
    """Whether a network takes images instead of flat rows."""
    return name in CONVOLUTIONS or bool(getattr(_installed.get(name), "takes_images", False))


def custom_network(name: str) -> "NetworkFactory | None":
    """The factory of a plug-in's network; None for built-in ones."""
    return _installed.get(name)
