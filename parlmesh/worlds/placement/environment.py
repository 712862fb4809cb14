"""Placement as gymnasium environments: one episode, or many in one array. Both use the same simulation."""

from typing import Any, Literal

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from ..vector_world import AloneEnv, Outcome, Stepped, WorldVectorEnv, alone
from .episode_conditions import drawn_conditions
from .load_patterns import read_trace
from .settings import read_settings
from .simulation import Simulation
from .world_versions import VIEWS

Version = Literal[1, 2, 3]
_TOLD = ("latency", "resource", "balance", "refused", "latency_ms", "lost", "throughput")


class PlacementVectorEnv(WorldVectorEnv):
    """`num_envs` copies of one cluster, each with its own conditions."""

    def __init__(self, num_envs: int = 1, *, version: Version = 3, **settings: Any) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}", reason="ENVIRONMENT")
        if version not in VIEWS:
            raise InvalidInput(f"version must be 1, 2 or 3, got {version}", reason="ENVIRONMENT")
        settings.pop("render_mode", None)
        read = read_settings(settings)
        self.simulation = Simulation(read.build_cluster(version), read, num_envs)
        self.view = VIEWS[version](self.simulation)
        super().__init__(num_envs, self.view.observation_space, self.view.action_space)
        self.trace = read_trace(read.trace, read.trace_part) if read.trace is not None else None

    def begin(self, which: Array) -> None:
        """Draws the conditions of these episodes."""
        world = self.simulation
        drawn = [drawn_conditions(world.cluster, world.settings, self.trace, self.rngs[episode]) for episode in which]
        world.begin(which, drawn)

    def observe(self) -> Any:
        """The version's observation."""
        return self.view.observe(self.simulation)

    def act(self, actions: Array) -> Outcome:
        """Applies the version's actions."""
        return self._served(*self.view.act(self.simulation, actions))

    def place(self, wanted: Array) -> Stepped:
        """A step that moves pods to where they are wanted [E, N, D], with any number of operations. For baselines that
        are not limited to one operation per deployment."""
        if wanted.shape != self.simulation.pods.shape or (wanted < 0).any():
            raise InvalidInput(f"wanted must be {self.simulation.pods.shape} numbers of pods >= 0", reason="ACTION")
        capacity = np.where(self.simulation.alive[:, :, None], self.simulation.cluster.capacity, 0.0)
        if (wanted @ self.simulation.cluster.need > capacity + 1e-9).any():
            raise InvalidInput("wanted asks for more than a node has", reason="ACTION")
        self.refuse_before_reset()
        return self.after(self._served(wanted.astype(np.int64), np.zeros(self.num_envs)))

    def _served(self, wanted: Array, refused: Array) -> Outcome:
        served = self.simulation.step(wanted, refused)
        told = {name: getattr(served, name) for name in _TOLD}
        return Outcome(served.reward, np.zeros(self.num_envs, np.bool_), self.simulation.ended, told)


class PlacementEnv(AloneEnv):
    """One cluster."""

    def __init__(self, *, version: Version = 3, render_mode: None = None, **settings: Any) -> None:
        many = PlacementVectorEnv(1, version=version, **settings)
        super().__init__(many, render_mode)
        self.simulation = many.simulation

    def place(self, wanted: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step that moves pods to where they are wanted [N, D]."""
        assert isinstance(self.many, PlacementVectorEnv)
        return alone(self.many.place(wanted[None]))
