"""The arguments of a placement world, checked once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput

from .cluster_model import Cluster, generated_cluster, read_cluster

# v1 scales one deployment, v2 moves the pods of one, v3 does all for several.
_DEPLOYMENTS = {1: 1, 2: 1, 3: 4}


class Weights(Config):
    """What a step costs. The reward is minus the sum."""

    latency: float = Field(default=1.0, ge=0.0, le=1e6)
    """For every 100 ms of a request's mean latency."""
    resource: float = Field(default=2.0, ge=0.0, le=1e6)
    """For the whole cluster being reserved, mean over resources."""
    balance: float = Field(default=1.0, ge=0.0, le=1e6)
    """For every node being its whole size away from the mean utilisation, mean over resources."""
    refused: float = Field(default=0.1, ge=0.0, le=1e6)
    """For every operation that could not be done."""


class PlacementSettings(Config):
    """A placement world."""

    nodes: int = Field(default=8, ge=2, le=1000)
    """Nodes of a generated cluster."""
    deployments: int | None = Field(default=None, ge=1, le=1000)
    """Deployments of a generated cluster; null = 1 in v1 and v2, 4 in v3."""
    cluster_seed: int = Field(default=0, ge=0)
    """A generated cluster follows from it."""
    cluster: dict[str, Any] | None = None
    """A cluster of one's own instead: nodes, deployments, distance_ms."""
    profile: Literal["mixed", "steady", "daily", "bursty", "trace"] = "mixed"
    """How load changes; mixed draws one of steady, daily and bursty for every deployment and episode."""
    trace: Any = None
    """A CSV file whose last column is the load over time, or the numbers; its mean becomes the mean request rate."""
    trace_part: Literal["all", "first", "last"] = "all"
    """Which part of the trace episodes are cut from: train on the first two thirds, test on the last."""
    load_noise: float = Field(default=0.05, ge=0.0, le=1.0)
    """Relative deviation of the load from step to step, around its profile."""
    load_scale: float = Field(default=1.0, gt=0.0, le=1000.0)
    """All request rates are multiplied by this."""
    step_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Time between two decisions."""
    day_steps: int = Field(default=288, ge=2, le=1_000_000)
    """Steps of a daily profile's day."""
    episode_steps: int = Field(default=128, ge=1, le=100_000)
    """An episode is cut off after so many steps."""
    queue: Literal["per_pod", "shared"] = "per_pod"
    """per_pod: every pod has a queue of its own and requests are spread at random (M/M/1 each), as kube-proxy does;
    shared: one queue for all pods of a deployment (M/M/c)."""
    timeout_ms: float = Field(default=1000.0, gt=0.0, le=3_600_000.0)
    """A request that would take longer is lost and counts as having taken this long."""
    mobility: float = Field(default=0.02, ge=0.0, le=1.0)
    """Probability, for a deployment and step, that its users gather at another site."""
    concentration: float = Field(default=0.8, ge=0.0, le=1.0)
    """Share of a deployment's users at the site where they gather; the others are anywhere."""
    node_failures: float = Field(default=0.001, ge=0.0, le=1.0)
    """Probability, for a node and step, that it fails and loses its pods."""
    repair_steps: int = Field(default=10, ge=1, le=100_000)
    """Steps that a failed node stays away."""
    max_replicas: int = Field(default=8, ge=1, le=1000)
    """Most pods of a deployment."""
    min_replicas: int = Field(default=1, ge=0, le=1000)
    """An operation that would leave fewer is refused."""
    weights: Weights = Weights()

    def build_cluster(self, version: int) -> Cluster:
        """The one given, or the one generated."""
        if self.cluster is not None:
            return read_cluster(self.cluster)
        return generated_cluster(self.nodes, self.deployments or _DEPLOYMENTS[version], self.cluster_seed)


def read_settings(given: Mapping[str, Any]) -> PlacementSettings:
    """Settings from keyword arguments; refuses by name, value and range."""
    try:
        settings = PlacementSettings.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(describe_errors(PlacementSettings, error).message, reason="ENVIRONMENT") from None
    if settings.min_replicas > settings.max_replicas:
        least, most = settings.min_replicas, settings.max_replicas
        raise InvalidInput(f"min_replicas must be at most max_replicas, {most}, got {least}", reason="ENVIRONMENT")
    if not isinstance(settings.trace, str | Path | list | tuple | None):
        raise InvalidInput(f"trace must be a file or a list of numbers, got {settings.trace!r}", reason="TRACE")
    if (settings.trace is None) == (settings.profile == "trace"):
        asked = "needs a trace" if settings.trace is None else "must be trace when a trace is given"
        raise InvalidInput(f"profile {asked}, got profile {settings.profile!r}", reason="ENVIRONMENT")
    return settings
