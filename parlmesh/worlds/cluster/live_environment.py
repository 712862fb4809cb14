"""A live cluster as an environment: the spaces of Placement-v3, and a reward from measurements."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np

from parlmesh.errors import FleetError, InvalidInput
from parlmesh.types import Array

from ..placement.cluster_model import Cluster
from ..placement.operations import apply_operations
from ..placement.settings import PlacementSettings, read_settings
from ..placement.simulation import Served, Simulation
from ..placement.world_versions import FullView
from .allowed_writes import Guard, Write, WriteLog
from .kubernetes_client import Gateway
from .settings import LiveConfig
from .snapshot import Snapshot, read_snapshot
from .write_plan import planned_writes


@dataclass(frozen=True, slots=True)
class Prediction:
    """The model's mean request latency under the current load."""

    now_ms: float
    then_ms: float
    """Waits until the pods are where they are wanted and all started."""


class LiveCluster:
    """Reads, plans, checks and writes. The clock is passed in; it never sleeps."""

    def __init__(
        self,
        gateway: Gateway,
        config: LiveConfig,
        world: Mapping[str, Any],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config, self._gateway, self._clock = config, gateway, clock
        self.settings: PlacementSettings = read_settings(world)
        self.simulation = Simulation(self.settings.build_cluster(3), self.settings, 1)
        self.view = FullView(self.simulation)
        self._sites = _sites(config, self.simulation.cluster)
        self._guard, self._log = Guard(config), WriteLog(config)
        self.snapshot: Snapshot

    def read(self) -> Served:
        """Reads the cluster and returns its current cost."""
        cluster = self.simulation.cluster
        self.snapshot = seen = read_snapshot(self._gateway, self.config, cluster)
        return self.simulation.show(seen.pods, seen.alive, seen.load, seen.latency_ms, self._sites)

    def plan(self, wanted: Array) -> list[Write]:
        """The writes that would move the pods to where they are wanted [N, D]."""
        return planned_writes(self.simulation.cluster, self.config, self.snapshot, wanted)

    def predict(self, wanted: Array) -> Prediction:
        """The model's latencies for the current and the wanted pods; changes nothing."""
        now, then = (self._modelled(pods) for pods in (self.snapshot.pods, wanted))
        return Prediction(now, then)

    def write(self, wanted: Array) -> list[Write]:
        """Makes the writes after all were allowed and validated by a server-side trial; a dry run only logs them."""
        writes, seen, config = self.plan(wanted), self.snapshot.to_dict(), self.config
        if config.dry_run:
            for write in writes:
                self._log.note(write, seen, "dry-run", self._clock())
            return writes
        self._guard.check(writes, self._clock())
        for write in writes:
            self._perform(write, self._version(write), trial=True)
        left: dict[str, str] = {}
        for write in writes:
            version = write.version or left.get(write.name, "")
            now = self._clock()
            self._log.note(write, seen, "asked", now)
            self._guard.made(write, now)
            try:
                left[write.name] = self._perform(write, version, trial=False)
            except FleetError as error:
                self._log.note(write, seen, f"failed: {error.message}", self._clock())
                raise
            self._log.note(write, seen, "done", self._clock())
        return writes

    def wait(self, wanted: Array) -> None:
        """Waits until every deployment has its wanted number of ready pods; DeadlineExceeded after `settle_seconds`."""
        names = [each.name for each in self.simulation.cluster.deployments]
        selectors = [
            self._gateway.deployment(self.config.namespace, name).spec.selector.match_labels or {} for name in names
        ]

        def settled(pods: list[Any]) -> bool:
            counts = [
                sum(
                    1
                    for pod in pods
                    if pod.metadata.deletion_timestamp is None
                    and all((pod.metadata.labels or {}).get(key) == value for key, value in selector.items())
                    and any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or [])
                )
                for selector in selectors
            ]
            return bool(counts == wanted.sum(axis=0).tolist())

        self._gateway.wait_for_pods(self.config.namespace, settled, self.config.settle_seconds)

    def _modelled(self, pods: Array) -> float:
        world = Simulation(self.simulation.cluster, self.settings, 1)
        latency = world.expected_latency(pods, self.simulation.load[0], self.simulation.distance[0])
        load = self.simulation.load[0]
        return float((latency * load).sum() / max(load.sum(), 1e-12))

    def _version(self, write: Write) -> str:
        if write.version:
            return write.version
        names = [each.name for each in self.simulation.cluster.deployments]
        return self.snapshot.versions[names.index(write.name)]

    def _perform(self, write: Write, version: str, *, trial: bool) -> str:
        gateway, place = self._gateway, (write.namespace, write.name)
        if write.verb == "scale":
            return gateway.scale(*place, write.replicas, version, trial=trial)
        if write.verb == "affinity":
            return gateway.prefer_nodes(*place, write.nodes, version, trial=trial)
        if write.verb == "mark":
            return gateway.mark_for_removal(*place, version, trial=trial)
        return gateway.evict(*place, version, trial=trial)


def _sites(config: LiveConfig, cluster: Cluster) -> Array:
    """The site where each deployment's users gather [D]."""
    names, count = [each.name for each in cluster.deployments], len(cluster.distance_ms)
    for name, site in config.users_at.items():
        if name not in names:
            raise InvalidInput(f"users_at names {name}; the world's deployments are {', '.join(names)}")
        if not 0 <= site < count:
            raise InvalidInput(f"users_at of {name} must be a row of distance_ms, 0 to {count - 1}, got {site}")
    return np.array([config.users_at.get(name, 0) for name in names])


class LiveEnv(gymnasium.Env[Any, Any]):
    """One step takes an operation for every deployment, as in Placement-v3, waits `step_seconds` and reads again."""

    metadata = {"render_modes": []}  # noqa: RUF012 (gymnasium's own convention)

    def __init__(self, live: LiveCluster, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.live, self._sleep = live, sleep
        self.observation_space, self.action_space = live.view.observation_space, live.view.action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reads the cluster; changes nothing."""
        super().reset(seed=seed)
        self._steps = 0
        self.live.read()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Makes the writes for the operations, or logs them in a dry run."""
        live = self.live
        wanted, refused = apply_operations(live.simulation, np.asarray(action, np.int64)[None])
        prediction = live.predict(wanted[0])
        writes = live.write(wanted[0])
        if writes and not live.config.dry_run:
            live.wait(wanted[0])
        self._sleep(live.settings.step_seconds)
        served = live.read()
        served = replace(served, refused=-live.settings.weights.refused * refused)
        self._steps += 1
        live.simulation.time[0] = self._steps
        told = {name: float(getattr(served, name)[0]) for name in ("latency", "resource", "balance", "refused")}
        told |= {"latency_ms": float(served.latency_ms[0]), "predicted_ms": prediction.then_ms, "writes": len(writes)}
        ended = self._steps >= live.settings.episode_steps
        return self._seen(), float(served.reward[0]), False, ended, told

    def _seen(self) -> Any:
        return {name: values[0] for name, values in self.live.view.observe(self.live.simulation).items()}
