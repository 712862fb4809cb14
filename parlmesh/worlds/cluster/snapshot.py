"""A live cluster as the simulator's arrays, so that views, masks and reward use the same code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from parlmesh.errors import FailedPrecondition, NotFound, Unavailable
from parlmesh.types import Array

from ..placement.cluster_model import Cluster
from .kubernetes_client import Gateway
from .prometheus import instant
from .settings import LiveConfig


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of one of the deployments."""

    name: str
    uid: str
    version: str
    node: int
    deployment: int
    ready: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as read; N nodes and D deployments in the world's order."""

    pods: Array
    """[N, D]."""
    alive: Array
    """[N]."""
    load: Array
    """Requests per second [D]."""
    latency_ms: Array
    """[D]."""
    replicas: Array
    """Requested replicas [D]."""
    versions: tuple[str, ...]
    """Resource versions of the deployments."""
    preferred: tuple[frozenset[str], ...]
    """Nodes preferred by each deployment's pod template."""
    members: tuple[Pod, ...]
    usage: Mapping[str, Mapping[str, str]]
    """Measured use by node; empty without metrics.k8s.io."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form for the write log."""
        return {
            "pods": self.pods.tolist(),
            "alive": self.alive.tolist(),
            "load": self.load.tolist(),
            "latency_ms": self.latency_ms.tolist(),
            "replicas": self.replicas.tolist(),
        }


def read_snapshot(gateway: Gateway, config: LiveConfig, cluster: Cluster) -> Snapshot:
    """Reads nodes, deployments and pods, and load and latency from Prometheus. Raises NotFound for a node or deployment
    of the world that the cluster lacks."""
    nodes = {node.name: index for index, node in enumerate(cluster.nodes)}
    seen = {node.metadata.name: node for node in gateway.nodes()}
    missing = [name for name in nodes if name not in seen]
    if missing:
        raise NotFound(f"the cluster has no node {', '.join(missing)}; the world's nodes must exist in the cluster")
    alive = np.array([_ready(seen[name]) and not seen[name].spec.unschedulable for name in nodes], np.bool_)
    if not alive.any():
        raise FailedPrecondition(f"none of the world's {len(nodes)} nodes is ready and schedulable", reason="NO_NODES")
    found = [gateway.deployment(config.namespace, each.name) for each in cluster.deployments]
    members = _members(gateway, config, found, nodes)
    pods = np.zeros((len(nodes), len(found)), np.int64)
    for pod in members:
        pods[pod.node, pod.deployment] += 1
    names = [deployment.name for deployment in cluster.deployments]
    return Snapshot(
        pods=pods,
        alive=alive,
        load=_measured(config, config.load_query, "load_query", names),
        latency_ms=_measured(config, config.latency_query, "latency_query", names),
        replicas=np.array([deployment.spec.replicas or 0 for deployment in found]),
        versions=tuple(str(deployment.metadata.resource_version) for deployment in found),
        preferred=tuple(_preferred(deployment) for deployment in found),
        members=tuple(members),
        usage=_usage(gateway),
    )


def _members(gateway: Gateway, config: LiveConfig, deployments: list[Any], nodes: Mapping[str, int]) -> list[Pod]:
    """Pods on the world's nodes that match a deployment's selector and are not terminating or finished."""
    found = []
    for pod in gateway.pods(config.namespace)[0]:
        if pod.metadata.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed"):
            continue
        labels = pod.metadata.labels or {}
        for index, deployment in enumerate(deployments):
            wanted = deployment.spec.selector.match_labels or {}
            if wanted and all(labels.get(key) == value for key, value in wanted.items()):
                if pod.spec.node_name in nodes:
                    meta = pod.metadata
                    node = nodes[pod.spec.node_name]
                    found.append(Pod(meta.name, meta.uid, str(meta.resource_version), node, index, _ready(pod)))
                break
    return found


def _ready(thing: Any) -> bool:
    conditions = thing.status.conditions or []
    return any(condition.type == "Ready" and condition.status == "True" for condition in conditions)


def _preferred(deployment: Any) -> frozenset[str]:
    affinity = deployment.spec.template.spec.affinity
    node = affinity.node_affinity if affinity else None
    terms = (node.preferred_during_scheduling_ignored_during_execution if node else None) or []
    expressions = [each for term in terms for each in term.preference.match_expressions or []]
    return frozenset(name for each in expressions if each.key == "kubernetes.io/hostname" for name in each.values or [])


def _measured(config: LiveConfig, query: str, name: str, deployments: list[str]) -> Array:
    if not config.prometheus or not query:
        raise FailedPrecondition(f"{name} and prometheus must be set to measure the cluster", reason="PROMETHEUS")
    found = instant(config.prometheus, query)
    missing = [deployment for deployment in deployments if deployment not in found]
    if missing:
        # An unknown latency must not count as 0, which would look perfect.
        raise FailedPrecondition(f"{name} returns no value for {', '.join(missing)}", reason="PROMETHEUS")
    return np.array([max(found[deployment], 0.0) for deployment in deployments])


def _usage(gateway: Gateway) -> Mapping[str, Mapping[str, str]]:
    """Empty if metrics.k8s.io is not served or its server is down (503): no decision depends on it."""
    try:
        return gateway.node_usage()
    except NotFound:
        return {}
    except Unavailable as error:
        if error.reason != "API_503":
            raise
        return {}
