"""The best sequence of operations for an episode of a small cluster, by dynamic programming over every placement.

It has the policies' start, operations and waits for pods, but knows the future. So it shows what could have been
reached, where `optimum` shows what nothing can exceed.
"""

from dataclasses import dataclass
from itertools import product
from math import comb

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .cluster_model import Cluster
from .episode_conditions import Conditions
from .operations import apply_operations, operation_count
from .settings import PlacementSettings
from .simulation import Simulation

# Most placements times operations; beyond this a step takes too long to be useful.
_LARGEST = 4_000_000


@dataclass(frozen=True, slots=True)
class Course:
    """Operations of an episode [T, D], and an upper bound on the mean reward per step. The search ignores the backlog
    between steps, so playing the operations may earn less; the true best lies in between."""

    bound: float
    operations: Array


class CourseSearch:
    """The search for one cluster; episodes share results that depend only on users' sites and nodes that are up."""

    def __init__(self, cluster: Cluster, settings: PlacementSettings) -> None:
        self.cluster, self.settings = cluster, settings
        nodes, deployments, most = len(cluster.nodes), len(cluster.deployments), settings.max_replicas
        ways, operations = comb(nodes + most, nodes), operation_count(nodes)
        if (ways * operations) ** deployments > _LARGEST:
            raise InvalidInput("the best course is for small clusters, such as 3 nodes, 2 deployments and 5 replicas")
        self.alone = np.array([way for way in product(range(most + 1), repeat=nodes) if sum(way) <= most])
        """Placements of one deployment [P, N]."""
        self._digits = (most + 1) ** np.arange(nodes)
        self._alone_at = np.zeros((most + 1) ** nodes, np.int64)
        self._alone_at[self.alone @ self._digits] = np.arange(ways)
        pods = self.alone[list(product(range(ways), repeat=deployments))].transpose(0, 2, 1)
        self.pods = pods[(pods @ cluster.need <= cluster.capacity).all(axis=(1, 2))]
        """Placements of all deployments [S, N, D]."""
        self._ways = ways ** np.arange(deployments)
        self._at = np.zeros(ways**deployments, np.int64)
        self._at[self._each_alone(self.pods) @ self._ways] = np.arange(len(self.pods))
        self.operations = np.array(list(product(range(operations), repeat=deployments)))
        self._world = Simulation(cluster, settings, len(self.pods))
        self._known: dict[bytes, tuple[Array, Array, Array]] = {}

    def best(self, conditions: Conditions, pods: Array) -> Course:
        """The best course from the current pods [N, D]."""
        steps = self.settings.episode_steps
        value, choices = np.zeros(len(self.pods)), np.zeros((steps, len(self.pods)), np.int64)
        for step in reversed(range(steps)):
            earned = self.earned(conditions, step, conditions.load[step + 1], value)
            choices[step], value = earned.argmax(axis=1), earned.max(axis=1)
        at = self.at(pods)
        bound, operations = float(value[at]) / steps, []
        for step in range(steps):
            choice = choices[step, at]
            operations.append(self.operations[choice])
            wanted, _, _ = self._done(conditions.site[step], conditions.alive[step])
            at = int(self._left(conditions.alive[step + 1])[wanted[at, choice]])
        return Course(bound, np.stack(operations))

    def at(self, pods: Array) -> int:
        """The index of a placement [N, D]."""
        return int(self._index(pods[None])[0])

    def earned(self, conditions: Conditions, step: int, load: Array, value: Array) -> Array:
        """For every placement and operation [S, A]: the step's reward under this load [D] plus the value [S] of the
        placement it leads to."""
        wanted, refused, serving = self._done(conditions.site[step], conditions.alive[step])
        site, alive = conditions.site[step + 1], conditions.alive[step + 1]
        left, weights = self._left(alive), self.settings.weights
        self._world.alive = alive[None].repeat(len(self.pods), axis=0)
        resource, balance = self._world.reservation(self.pods[left] @ self.cluster.need)
        kept = value[left] - weights.resource * resource - weights.balance * balance
        earned: Array = kept[wanted] - weights.refused * refused
        latency = self.milliseconds(load, site, alive)
        for deployment, share in enumerate(load / load.sum()):
            earned -= (weights.latency * share / 100.0 * latency[:, deployment])[serving[:, :, deployment]]
        return earned

    def milliseconds(self, load: Array, site: Array, alive: Array) -> Array:
        """Request latency by placement of its deployment [P, D], without a backlog."""
        serving = np.where(alive, self.alone, 0)[:, :, None].repeat(len(load), axis=2)
        distance, nothing = self._world.users_distance[:, site], np.zeros((len(serving), len(load)))
        milliseconds, _, _ = self._world.latency(serving, nothing, nothing + load, distance[None])
        return milliseconds

    def _left(self, alive: Array) -> Array:
        """The rest of every placement [S] when only these nodes are up."""
        return self._index(np.where(alive[:, None], self.pods, 0))

    def _done(self, site: Array, alive: Array) -> tuple[Array, Array, Array]:
        """For every operation: the wanted placement [S, A], refusals [S, A], and pods serving in the meantime [S, A,
        D]."""
        key = site.tobytes() + alive.tobytes()
        if key not in self._known:
            count, world = len(self.pods), self._world
            world.pods, world.alive = self.pods, alive[None].repeat(count, axis=0)
            world.distance = world.users_distance[:, site][None].repeat(count, axis=0)
            world.reserve()
            done = [apply_operations(world, each[None].repeat(count, axis=0)) for each in self.operations]
            self._known[key] = (
                np.stack([self._index(wanted) for wanted, _ in done], axis=1),
                np.stack([refused for _, refused in done], axis=1),
                np.stack([self._each_alone(np.minimum(self.pods, wanted)) for wanted, _ in done], axis=1),
            )
        return self._known[key]

    def _each_alone(self, pods: Array) -> Array:
        """The index of each deployment's placement [S, D]."""
        found: Array = self._alone_at[pods.transpose(0, 2, 1) @ self._digits]
        return found

    def _index(self, pods: Array) -> Array:
        """The index of each placement of all deployments [S]."""
        found: Array = self._at[self._each_alone(pods) @ self._ways]
        return found
