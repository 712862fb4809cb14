"""The arguments of a placement world, validated once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput

from .cluster_model import Cluster, generated_cluster, read_cluster

# v1 scales one deployment, v2 moves its pods, v3 does both for several.
_DEPLOYMENTS = {1: 1, 2: 1, 3: 4}


class Weights(Config):
    """The costs of a step. The reward is minus their sum."""

    latency: float = Field(default=1.0, ge=0.0, le=1e6)
    """Cost per 100 ms of mean request latency."""
    resource: float = Field(default=2.0, ge=0.0, le=1e6)
    """Cost when the whole cluster is reserved, averaged over resources."""
    balance: float = Field(default=1.0, ge=0.0, le=1e6)
    """Cost when every node is its whole size away from the mean utilisation, averaged over resources."""
    refused: float = Field(default=0.1, ge=0.0, le=1e6)
    """Cost of each operation that could not be done."""


class PlacementSettings(Config):
    """Settings of a placement world."""

    nodes: int = Field(default=8, ge=2, le=1000)
    """Nodes of a generated cluster."""
    deployments: int | None = Field(default=None, ge=1, le=1000)
    """Deployments of a generated cluster; null = 1 in v1 and v2, 4 in v3."""
    cluster_seed: int = Field(default=0, ge=0)
    """Seed of a generated cluster."""
    cluster: dict[str, Any] | None = None
    """Your own cluster instead: nodes, deployments, distance_ms."""
    profile: Literal["mixed", "steady", "daily", "bursty", "trace"] = "mixed"
    """How load changes; mixed draws steady, daily or bursty for every deployment and episode."""
    trace: Any = None
    """A CSV file whose last column is the load over time, or a list of numbers; scaled to the mean request rate."""
    trace_part: Literal["all", "first", "last"] = "all"
    """The part of the trace that episodes are cut from: first = the first two thirds, last = the rest."""
    load_noise: float = Field(default=0.05, ge=0.0, le=1.0)
    """Relative standard deviation of the load around its profile, drawn at every step."""
    load_scale: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Factor for all request rates."""
    step_seconds: float = Field(default=60.0, gt=0.0, le=86_400.0)
    """Time between two decisions."""
    day_steps: int = Field(default=288, ge=2, le=1_000_000)
    """Steps per day of the daily profile."""
    episode_steps: int = Field(default=128, ge=1, le=100_000)
    """Steps after which an episode is truncated."""
    queue: Literal["per_pod", "shared"] = "per_pod"
    """per_pod: every pod has its own queue and requests are spread at random (M/M/1 each), as kube-proxy does;
    shared: one queue for all pods of a deployment (M/M/c)."""
    timeout_ms: float = Field(default=1000.0, gt=0.0, le=3_600_000.0)
    """A request that would take longer is lost and counts with this latency."""
    mobility: float = Field(default=0.02, ge=0.0, le=1.0)
    """Probability per deployment and step that its users move to another site."""
    concentration: float = Field(default=0.8, ge=0.0, le=1.0)
    """Share of a deployment's users at their current site; the others are spread evenly."""
    node_failures: float = Field(default=0.001, ge=0.0, le=1.0)
    """Probability per node and step that it fails and loses its pods."""
    repair_steps: int = Field(default=10, ge=1, le=100_000)
    """Steps that a failed node stays down."""
    max_replicas: int = Field(default=8, ge=1, le=1000)
    """Most pods per deployment."""
    min_replicas: int = Field(default=1, ge=0, le=1000)
    """An operation that would leave fewer is refused."""
    weights: Weights = Weights()

    def build_cluster(self, version: int) -> Cluster:
        """The given cluster, or a generated one."""
        if self.cluster is not None:
            return read_cluster(self.cluster)
        return generated_cluster(self.nodes, self.deployments or _DEPLOYMENTS[version], self.cluster_seed)


def read_settings(given: Mapping[str, Any]) -> PlacementSettings:
    """Settings from keyword arguments; an invalid one raises InvalidInput with its name, value and range."""
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
