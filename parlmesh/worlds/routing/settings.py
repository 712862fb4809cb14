"""The arguments of a routing world, validated once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput


class RoutingSettings(Config):
    """Settings of meshes, links and packets."""

    topology: Path | None = None
    """A GML file, or a folder of them; null = generated meshes."""
    topologies: tuple[str, ...] = ()
    """Names of the files to use from the folder, without .gml; empty = all."""
    networks: int = Field(default=16, ge=1, le=1000)
    """Number of generated meshes; every packet travels in one of them."""
    nodes: int = Field(default=24, ge=2, le=500)
    """Nodes of a generated mesh."""
    topology_seed: int = Field(default=0, ge=0)
    """Seed of the meshes, their link quality, load and failures; use another one for held-out meshes."""
    scenarios: int = Field(default=32, ge=1, le=1000)
    """Courses of load and failures drawn for every mesh; every packet travels under one of them."""
    neighbours: int = Field(default=8, ge=2, le=64)
    """Choices at a node: the best neighbours for the destination by ETX with all links up."""
    load: Any = (0.0, 0.9)
    """Mean utilisation that a packet meets on a shortest path; a number, or a range [least, most]."""
    link_failures: float = Field(default=0.01, ge=0.0, le=1.0)
    """Probability per link and step that it fails."""
    repair_steps: int = Field(default=8, ge=1, le=10_000)
    """Steps that a failed link stays down."""
    worst_delivery: float = Field(default=0.5, gt=0.0, le=1.0)
    """Lowest share of frames that a link delivers at the first try; the highest is 1."""
    retries: int = Field(default=3, ge=0, le=20)
    """How often an undelivered frame is sent again before the packet is lost."""
    buffer: int = Field(default=16, ge=1, le=1000)
    """Packets that can wait for a link; any further packet is lost."""
    ttl: int = Field(default=32, ge=2, le=255)
    """Hops after which a packet is lost."""
    hop_cost: float = Field(default=0.02, ge=0.0, le=10.0)
    """Cost of each transmission time that a packet needs or waits."""
    loss_cost: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Cost of a lost packet."""

    @property
    def load_range(self) -> tuple[float, float]:
        """The lowest and highest load."""
        low, high = self.load if isinstance(self.load, list | tuple) else (self.load, self.load)
        return float(low), float(high)


def read_settings(given: Mapping[str, Any]) -> RoutingSettings:
    """Settings from keyword arguments; an invalid one raises InvalidInput with its name, value and range."""
    try:
        settings = RoutingSettings.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(describe_errors(RoutingSettings, error).message, reason="ENVIRONMENT") from None
    try:
        low, high = settings.load_range
    except (TypeError, ValueError):
        low, high = -1.0, -1.0
    if not 0.0 <= low <= high <= 10.0:
        said = f"load must be a number or a range [least, most] within 0 to 10, got {settings.load!r}"
        raise InvalidInput(said, reason="ENVIRONMENT")
    if settings.topologies and settings.topology is None:
        raise InvalidInput("topologies names files in a folder; topology must name that folder", reason="ENVIRONMENT")
    return settings
