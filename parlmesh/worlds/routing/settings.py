"""The arguments of a mesh, checked once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput


class RoutingSettings(Config):
    """Meshes, their links, and what happens to packets."""

    topology: Path | None = None
    """A GML file, or a folder of them; null = generated meshes."""
    topologies: tuple[str, ...] = ()
    """Names of the files to take from the folder, without .gml; none = all."""
    networks: int = Field(default=16, ge=1, le=1000)
    """Generated meshes; every packet travels in one of them."""
    nodes: int = Field(default=24, ge=2, le=500)
    """Nodes of a generated mesh."""
    topology_seed: int = Field(default=0, ge=0)
    """Meshes, the quality of their links and what happens in them follow from it; held-out meshes have another."""
    scenarios: int = Field(default=32, ge=1, le=1000)
    """Courses of load and failures drawn for every mesh; every packet meets one of them."""
    neighbours: int = Field(default=8, ge=2, le=64)
    """Choices at a node: the neighbours that are best for the destination by ETX when all links are up."""
    load: Any = (0.0, 0.9)
    """Utilisation that a packet on a shortest path meets on average, or the least and the most of it."""
    link_failures: float = Field(default=0.01, ge=0.0, le=1.0)
    """Probability, for a link and step, that it fails."""
    repair_steps: int = Field(default=8, ge=1, le=10_000)
    """Steps that a failed link stays away."""
    worst_delivery: float = Field(default=0.5, gt=0.0, le=1.0)
    """Links deliver between this share and all of the frames, at the first try."""
    retries: int = Field(default=3, ge=0, le=20)
    """A frame that is not delivered is sent again so often; then the packet is lost."""
    buffer: int = Field(default=16, ge=1, le=1000)
    """Packets that can wait for a link; one more is lost."""
    ttl: int = Field(default=32, ge=2, le=255)
    """Hops after which a packet is lost."""
    hop_cost: float = Field(default=0.02, ge=0.0, le=10.0)
    """For each transmission time that a packet needs or waits for."""
    loss_cost: float = Field(default=1.0, ge=0.0, le=1000.0)
    """For a lost packet."""

    @property
    def load_range(self) -> tuple[float, float]:
        """The least and the most load."""
        low, high = self.load if isinstance(self.load, list | tuple) else (self.load, self.load)
        return float(low), float(high)


def read_settings(given: Mapping[str, Any]) -> RoutingSettings:
    """Settings from keyword arguments; refuses by name, value and range."""
    try:
        settings = RoutingSettings.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(describe_errors(RoutingSettings, error).message, reason="ENVIRONMENT") from None
    try:
        low, high = settings.load_range
    except (TypeError, ValueError):
        low, high = -1.0, -1.0
    if not 0.0 <= low <= high <= 10.0:
        said = f"load must lie in 0 to 10: a number, or the least and the most, got {settings.load!r}"
        raise InvalidInput(said, reason="ENVIRONMENT")
    if settings.topologies and settings.topology is None:
        raise InvalidInput("topologies names files of a folder; topology must name the folder", reason="ENVIRONMENT")
    return settings
