"""Plans the writes that move pods to where they are wanted, in the order of execution. Pure."""

from collections.abc import Sequence

import numpy as np

from parlmesh.types import Array

from ..placement.cluster_model import Cluster
from .allowed_writes import Write
from .settings import LiveConfig
from .snapshot import Pod, Snapshot


def planned_writes(cluster: Cluster, config: LiveConfig, snapshot: Snapshot, wanted: Array) -> list[Write]:
    """For each deployment: its preferred nodes, pods to evict (replacements start on preferred nodes), pods to remove
    first, and the number of replicas. An empty version stands for the version that the previous write returns.

    A new preference changes the pod template, so Kubernetes replaces all pods of the deployment; all of them count.
    """
    writes: list[Write] = []
    for deployment, about in enumerate(cluster.deployments):
        before, after = snapshot.pods[:, deployment], wanted[:, deployment]
        if np.array_equal(before, after):
            continue
        space, version = config.namespace, snapshot.versions[deployment]
        gained, lost = np.maximum(after - before, 0), np.maximum(before - after, 0)
        moved = int(min(gained.sum(), lost.sum()))
        leaving = _leaving(snapshot.members, deployment, lost)
        if {cluster.nodes[node].name for node in np.flatnonzero(gained)} - snapshot.preferred[deployment]:
            weights = {cluster.nodes[node].name: _weight(after, node) for node in np.flatnonzero(after).tolist()}
            writes.append(Write("affinity", space, about.name, version, int(before.sum()), nodes=weights))
            version = ""
        else:
            writes += [Write("evict", space, pod.name, pod.uid, 1) for pod in leaving[:moved]]
            writes += [Write("mark", space, pod.name, pod.version, 0) for pod in leaving[moved:]]
        count = int(after.sum())
        if count != snapshot.replicas[deployment]:
            change = abs(count - int(snapshot.replicas[deployment]))
            writes.append(Write("scale", space, about.name, version, change, replicas=count))
    return writes


def _weight(after: Array, node: int) -> int:
    """1 to 100, proportional to the share of pods wanted on the node."""
    return max(1, round(100 * int(after[node]) / int(after.sum())))


def _leaving(members: Sequence[Pod], deployment: int, lost: Array) -> list[Pod]:
    """Pods to remove from nodes that lose some; those not ready come first."""
    found: list[Pod] = []
    for node in np.flatnonzero(lost).tolist():
        here = [pod for pod in members if pod.deployment == deployment and pod.node == node]
        found += sorted(here, key=lambda pod: (pod.ready, pod.name))[: int(lost[node])]
    return found
