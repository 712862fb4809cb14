"""Conditions of an episode that no action changes: load, users' sites, and which nodes are up.

They are drawn at the start from the episode's own generator. So steps need no random numbers, many episodes can be
computed together, and an optimum with perfect foresight can be found.
"""

from dataclasses import dataclass

import numpy as np

from parlmesh.types import Array

from .cluster_model import Cluster
from .load_patterns import KINDS, factors
from .settings import PlacementSettings


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one episode or, with a leading axis, of several."""

    load: Array
    """Requests per second [T+1, D]."""
    site: Array
    """The site where users gather [T+1, D]."""
    alive: Array
    """Which nodes are up [T+1, N]."""


def drawn_conditions(
    cluster: Cluster, settings: PlacementSettings, trace: Array | None, rng: np.random.Generator
) -> Conditions:
    """Conditions of one episode. Row 0 is observed before the first step."""
    steps, deployments, nodes = settings.episode_steps + 1, len(cluster.deployments), len(cluster.nodes)
    _, shape = drawn_profiles(deployments, settings, trace, rng)
    noise = 1.0 + settings.load_noise * rng.standard_normal((steps, deployments))
    load = cluster.request_rate * settings.load_scale * shape * np.maximum(noise, 0.0)
    return Conditions(load, _sites(cluster, settings, steps, rng), _alive(nodes, settings, steps, rng))


def drawn_profiles(
    deployments: int, settings: PlacementSettings, trace: Array | None, rng: np.random.Generator
) -> tuple[list[str], Array]:
    """The first draws of an episode's generator: each deployment's load profile, and its factors [T+1, D]."""
    kinds: list[str] = [settings.profile] * deployments
    if settings.profile == "mixed":
        kinds = [KINDS[index] for index in rng.integers(len(KINDS), size=deployments)]
    steps = settings.episode_steps + 1
    return kinds, np.stack([factors(kind, steps, settings.day_steps, rng, trace) for kind in kinds], axis=1)


def _sites(cluster: Cluster, settings: PlacementSettings, steps: int, rng: np.random.Generator) -> Array:
    deployments, sites = len(cluster.deployments), len(cluster.distance_ms)
    moves = rng.random((steps, deployments)) < settings.mobility
    chosen = rng.integers(sites, size=(steps, deployments))
    moves[0] = True
    # The index of the latest move at every step.
    newest = np.maximum.accumulate(np.where(moves, np.arange(steps)[:, None], 0), axis=0)
    return np.take_along_axis(chosen, newest, axis=0)


def _alive(nodes: int, settings: PlacementSettings, steps: int, rng: np.random.Generator) -> Array:
    alive = np.ones((steps, nodes), np.bool_)
    fails = rng.random((steps, nodes)) < settings.node_failures
    fails[0] = False
    for step, node in np.argwhere(fails):
        # Never fail the last node: without nodes there is nothing to decide.
        if alive[step, node] and alive[step].sum() > 1:
            alive[step : step + settings.repair_steps, node] = False
    return alive
