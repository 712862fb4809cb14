"""Routing as gymnasium environments: an episode is the path of one packet, a step is one hop."""

from typing import Any

import numpy as np
from gymnasium import spaces

from parlmesh.errors import InvalidInput
from parlmesh.types import ACTION_MASK, Array

from ..vector_world import AloneEnv, Outcome, WorldVectorEnv
from .mesh_arrays import build_meshes
from .packets import Choices, Packets
from .settings import read_settings

FACTS = 8
"""Per neighbour: link up, link ETX, ETX to the destination through it, link utilisation, mean utilisation of the
neighbour's links, that of its best next link, whether the packet was there, whether it is the destination."""


class MeshRoutingVectorEnv(WorldVectorEnv):
    """`num_envs` packets, each in a mesh from the same pool. One policy routes at every node of every mesh."""

    def __init__(self, num_envs: int = 1, **settings: Any) -> None:
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}", reason="ENVIRONMENT")
        settings.pop("render_mode", None)
        read = read_settings(settings)
        self.packets = Packets(build_meshes(read), read, num_envs)
        self.choices: Choices
        parts: dict[str, spaces.Space[Any]] = {
            "neighbours": spaces.Box(0.0, 1.0, (read.neighbours, FACTS), np.float32),
            "packet": spaces.Box(0.0, 1.0, (2,), np.float32),
            ACTION_MASK: spaces.MultiBinary(read.neighbours),
        }
        super().__init__(num_envs, spaces.Dict(parts), spaces.Discrete(read.neighbours))

    def begin(self, which: Array) -> None:
        """Sends new packets."""
        self.packets.send(which, [self.rngs[packet] for packet in which])

    def observe(self) -> dict[str, Array]:
        """The knowledge of the packet's node: its own links, and its neighbours' reports about theirs."""
        packets = self.packets
        self.choices = choices = packets.choices()
        distance = packets.distance[:, None]
        facts = (
            choices.up,
            packets.meshes.etx[packets.mesh[:, None], choices.link] / 4.0,
            np.where(choices.there, choices.cost, np.inf) / np.maximum(distance, 1e-9) / 3.0,
            choices.utilisation / 2.0,
            *self._told_by_neighbours(),
            np.take_along_axis(packets.visited, np.maximum(choices.node, 0), axis=1),
            choices.node == packets.goal[:, None],
        )
        seen = np.where(choices.there[:, :, None], np.clip(np.stack(facts, axis=2), 0.0, 1.0), 0.0)
        packet = np.concatenate((distance / 20.0, 1.0 - packets.hops[:, None] / packets.settings.ttl), axis=1)
        return {
            "neighbours": seen.astype(np.float32),
            "packet": np.clip(packet, 0.0, 1.0).astype(np.float32),
            ACTION_MASK: self._mask().astype(np.int8),
        }

    def act(self, actions: Array) -> Outcome:
        """One hop of every packet."""
        packets, settings = self.packets, self.packets.settings
        hops = packets.step(self.choices, actions)
        reward = -settings.hop_cost * hops.cost - settings.loss_cost * hops.lost
        told = {"delivered": hops.delivered * 1.0, "lost": hops.lost * 1.0, "etx": hops.etx, "delay": hops.cost}
        return Outcome(reward, hops.delivered | hops.lost, np.zeros(self.num_envs, np.bool_), told)

    def _mask(self) -> Array:
        """Neighbours whose link is up; all neighbours when none is."""
        up, there = self.choices.up, self.choices.there
        return np.where(up.any(axis=1, keepdims=True), up, there)

    def _told_by_neighbours(self) -> tuple[Array, Array]:
        """Mean utilisation / 2 of a neighbour's links, and utilisation / 4 of its best next link, or 1 if that is down
        [E, K]."""
        packets, meshes, node = self.packets, self.packets.meshes, self.choices.node
        mesh, scenario, time = (part[:, None] for part in (packets.mesh, packets.scenario, packets.time))
        mean = meshes.congestion[mesh, scenario, time, node]
        link = meshes.onward[mesh, node, packets.goal[:, None]]
        at = (mesh, scenario, time, link)
        return mean / 2.0, np.where(meshes.up[at], meshes.utilisation[at] / 4.0, 1.0)


class MeshRoutingEnv(AloneEnv):
    """One packet at a time."""

    def __init__(self, *, render_mode: None = None, **settings: Any) -> None:
        many = MeshRoutingVectorEnv(1, **settings)
        super().__init__(many, render_mode)
        self.packets = many.packets
