"""An upper bound on the reward of any placement, computed with all loads known in advance: a reference, not a policy.

Each step is solved independently as a mixed-integer linear program (HiGHS), as if pods started at once and there were
no backlog from the previous step. Both can only help, so the result bounds every policy from above.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.types import Array

from .cluster_model import Cluster
from .episode_conditions import Conditions
from .response_times import SATURATED, per_pod_response, shared_response
from .settings import PlacementSettings
from .simulation import Simulation

# Beyond this size a step takes too long to be useful.
_LARGEST = 4000
_STEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Best:
    """An episode's best rewards per step [T], and their pods [T, N, D]."""

    rewards: Array
    pods: Array


def best_possible(cluster: Cluster, settings: PlacementSettings, conditions: Conditions) -> Best:
    """The upper bound of every step of an episode."""
    program = _Program(cluster, settings)
    steps = [
        program.solved(conditions.load[step], conditions.site[step], conditions.alive[step])
        for step in range(1, settings.episode_steps + 1)
    ]
    return Best(np.array([reward for reward, _ in steps]), np.stack([pods for _, pods in steps]))


class _Program:
    """Variables, in this order: x[n, d, c], pods of d on n when d has c pods; y[d, c], whether d has c pods; and, for
    every node and resource, the absolute deviation of its utilisation from the mean."""

    def __init__(self, cluster: Cluster, settings: PlacementSettings) -> None:
        self._cluster, self._settings = cluster, settings
        self._shape = (len(cluster.nodes), len(cluster.deployments), settings.max_replicas)
        nodes, deployments, most = self._shape
        self._pods, self._choices = nodes * deployments * most, deployments * most
        size = self._pods + self._choices
        if size > _LARGEST:
            raise InvalidInput(f"the optimum is for small clusters, nodes · deployments · replicas <= {_LARGEST}")
        self._distance = Simulation(cluster, settings, 1).users_distance

    def solved(self, load: Array, site: Array, alive: Array) -> tuple[float, Array]:
        """The largest reward of a step and its pods [N, D]."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        nodes, deployments, most = self._shape
        resources = self._cluster.capacity.shape[1]
        deviations = nodes * resources
        cost = np.concatenate((self._pod_cost(load, site), self._count_cost(load), self._deviation_cost(alive)))
        matrix, lower, upper = self._constraints(alive)
        high = np.concatenate(
            (
                np.where(alive[:, None, None], float(most), 0.0).repeat(deployments, 1).repeat(most, 2).ravel(),
                np.ones(self._choices),
                np.full(deviations, np.inf),
            )
        )
        whole = np.concatenate((np.ones(self._pods + self._choices), np.zeros(deviations)))
        answer = milp(
            cost,
            integrality=whole,
            bounds=Bounds(np.zeros(len(cost)), high),
            constraints=LinearConstraint(matrix, lower, upper),
            options={"time_limit": _STEP_SECONDS, "mip_rel_gap": 1e-6},
        )
        if answer.x is None:
            raise FailedPrecondition(f"no placement was found: {answer.message}", reason="OPTIMUM")
        pods = np.rint(answer.x[: self._pods]).astype(np.int64).reshape(self._shape).sum(axis=2)
        # Use the dual bound: the search may have stopped before proving optimality.
        return -float(answer.mip_dual_bound if answer.mip_dual_bound is not None else answer.fun), pods

    def _pod_cost(self, load: Array, site: Array) -> Array:
        """Cost of network latency and of reserved resources."""
        weights, cluster = self._settings.weights, self._cluster
        share = load / load.sum()
        network = weights.latency * self._distance[:, site] * share / 100.0
        reserved = weights.resource * (cluster.need / cluster.capacity.sum(axis=0)).mean(axis=1)
        counts = np.arange(1, self._shape[2] + 1)
        cost: Array = (network[:, :, None] / counts + reserved[None, :, None]).ravel()
        return cost

    def _count_cost(self, load: Array) -> Array:
        """Cost of queueing latency when a deployment has c pods [D, C]. An overloaded deployment has at least a backlog
        at the end of the step, and half of it on average."""
        settings, rate = self._settings, self._cluster.service_rate[:, None]
        counts = np.arange(1, self._shape[2] + 1)[None, :]
        capacity = counts * rate
        respond = shared_response if settings.queue == "shared" else per_pod_response
        seconds = respond(np.minimum(load[:, None], SATURATED * capacity), rate, counts * np.ones_like(rate))
        excess = np.clip((load[:, None] - capacity) * settings.step_seconds, 0.0, capacity * settings.timeout_ms / 1000)
        queued = np.minimum(1000.0 * (seconds + 0.5 * excess / capacity), settings.timeout_ms)
        # Together with the network latency, this may exceed the timeout, which no policy pays.
        share = (load / load.sum())[:, None]
        cost: Array = (settings.weights.latency * share * queued / 100.0).ravel()
        return cost

    def _deviation_cost(self, alive: Array) -> Array:
        resources = self._cluster.capacity.shape[1]
        weight = self._settings.weights.balance / (alive.sum() * resources)
        return np.where(alive[:, None], weight, 0.0).repeat(resources, axis=1).ravel()

    def _constraints(self, alive: Array) -> tuple[Array, Array, Array]:
        nodes, deployments, most = self._shape
        cluster = self._cluster
        resources = cluster.capacity.shape[1]
        width = self._pods + self._choices + nodes * resources
        rows: list[Array] = []
        lower: list[float] = []
        upper: list[float] = []

        def row(low: float, high: float) -> tuple[Array, Array, Array]:
            fresh = np.zeros(width)
            rows.append(fresh)
            lower.append(low)
            upper.append(high)
            pods = fresh[: self._pods].reshape(self._shape)
            choice = fresh[self._pods : self._pods + self._choices].reshape(deployments, most)
            return pods, choice, fresh[self._pods + self._choices :].reshape(nodes, resources)

        for deployment in range(deployments):
            row(1.0, 1.0)[1][deployment] = 1.0
            for count in range(most):
                pods, choice, _ = row(0.0, 0.0)
                pods[:, deployment, count] = 1.0
                choice[deployment, count] = -(count + 1.0)
        mean = cluster.need[None] / cluster.capacity[:, None] / alive.sum()
        for node in np.flatnonzero(alive):
            for resource in range(resources):
                pods, _, _ = row(0.0, cluster.capacity[node, resource])
                pods[node] = cluster.need[:, resource, None]
                for sign in (1.0, -1.0):
                    pods, _, deviation = row(0.0, np.inf)
                    deviation[node, resource] = 1.0
                    pods[:] = sign * mean[:, :, resource, None]
                    pods[node] -= sign * cluster.need[:, resource, None] / cluster.capacity[node, resource]
        return np.stack(rows), np.array(lower), np.array(upper)
