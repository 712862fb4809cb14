"""The static model of a cluster: nodes, deployments and users' distances."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from parlmesh.config import Config
from parlmesh.config.validation_errors import describe_errors
from parlmesh.errors import InvalidInput
from parlmesh.types import Array

RESOURCES = ("cpu", "ram", "tx", "rx", "disk")
"""Resources in cores, MB, Mbit/s sent, Mbit/s received and MB/s."""

Amount = Annotated[float, Field(gt=0.0, le=1e9)]
Milliseconds = Annotated[float, Field(ge=0.0, le=60_000.0)]


class Amounts(Config):
    """An amount of every resource."""

    cpu: Amount
    """Cores."""
    ram: Amount
    """Megabytes."""
    tx: Amount = 1000.0
    """Mbit/s sent."""
    rx: Amount = 1000.0
    """Mbit/s received."""
    disk: Amount = 500.0
    """MB/s read and written."""

    @property
    def vector(self) -> list[float]:
        """The amounts in the order of RESOURCES."""
        return [getattr(self, name) for name in RESOURCES]


class Node(Amounts):
    """A node: its capacity, and the latency it adds."""

    name: str = Field(min_length=1, max_length=253)
    """Name in the cluster."""
    latency_ms: Milliseconds = 1.0
    """Latency that the node itself adds to every request."""


class Deployment(Amounts):
    """A deployment: a pod's needs and service rate, and the deployment's mean request rate."""

    name: str = Field(min_length=1, max_length=253)
    """Name in the cluster."""
    tx: Amount = 20.0
    rx: Amount = 20.0
    disk: Amount = 50.0
    service_rate: Amount
    """Requests per second that one pod serves when it is never idle."""
    request_rate: Amount
    """Mean requests per second of all its users."""


class Cluster(Config):
    """Nodes and deployments; `distance_ms[s][n]` is the network latency of a request from site s to node n."""

    nodes: tuple[Node, ...] = Field(min_length=1, max_length=1000)
    deployments: tuple[Deployment, ...] = Field(min_length=1, max_length=1000)
    distance_ms: tuple[tuple[Milliseconds, ...], ...] = Field(min_length=1, max_length=1000)
    """One row per user site, one number per node."""

    @model_validator(mode="after")
    def _fits(self) -> "Cluster":
        for kind, names in (("nodes", self.nodes), ("deployments", self.deployments)):
            if len({each.name for each in names}) < len(names):
                raise ValueError(f"{kind} must have different names")
        if any(len(row) != len(self.nodes) for row in self.distance_ms):
            raise ValueError(f"every row of distance_ms must have {len(self.nodes)} numbers, one for each node")
        for deployment in self.deployments:
            if not (self.capacity >= np.array(deployment.vector)).all(axis=1).any():
                raise ValueError(f"a pod of the deployment {deployment.name} fits on no node")
        return self

    @cached_property
    def capacity(self) -> Array:
        """Capacity of the nodes [N, R]."""
        return np.array([node.vector for node in self.nodes])

    @cached_property
    def need(self) -> Array:
        """Needs of one pod [D, R]."""
        return np.array([deployment.vector for deployment in self.deployments])

    @cached_property
    def service_rate(self) -> Array:
        """Requests per second of one pod [D]."""
        return np.array([deployment.service_rate for deployment in self.deployments])

    @cached_property
    def request_rate(self) -> Array:
        """Mean requests per second of all users [D]."""
        return np.array([deployment.request_rate for deployment in self.deployments])

    @cached_property
    def distance(self) -> Array:
        """Milliseconds from a site's users to a node, including the node's own latency [S, N]."""
        found: Array = np.array(self.distance_ms) + np.array([node.latency_ms for node in self.nodes])
        return found


def read_cluster(given: Mapping[str, Any]) -> Cluster:
    """A cluster from a configuration mapping; InvalidInput names the invalid key."""
    try:
        return Cluster.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidInput(f"cluster: {describe_errors(Cluster, error).message}", reason="CLUSTER") from None


def generated_cluster(nodes: int, deployments: int, seed: int, *, replicas: float = 3.0) -> Cluster:
    """A cluster of mixed machines, each at its own site, on a plane about 60 ms wide.

    At the mean load, `replicas` pods of a deployment would be 60 % busy.
    """
    rng = np.random.default_rng([seed, nodes, deployments])
    positions = rng.uniform(0.0, 60.0, (nodes, 2))
    distance = np.linalg.norm(positions[:, None] - positions[None], axis=2)
    cores = rng.choice([4.0, 8.0, 16.0], nodes, p=[0.4, 0.4, 0.2])
    made_nodes = tuple(
        Node(name=f"node-{index}", cpu=cpu, ram=2000.0 * cpu, latency_ms=round(float(rng.uniform(0.5, 5.0)), 2))
        for index, cpu in enumerate(cores.tolist())
    )
    made = []
    for index in range(deployments):
        cpu = float(rng.choice([0.5, 1.0, 2.0]))
        rate = round(float(rng.uniform(20.0, 80.0)), 1)
        made.append(
            Deployment(
                name=f"deployment-{index}",
                cpu=cpu,
                ram=float(rng.choice([500.0, 1000.0, 2000.0])),
                service_rate=rate,
                request_rate=round(0.6 * replicas * rate, 1),
            )
        )
    rows = tuple(tuple(round(value, 2) for value in row) for row in distance.tolist())
    return Cluster(nodes=made_nodes, deployments=tuple(made), distance_ms=rows)
