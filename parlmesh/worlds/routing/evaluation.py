"""Routes one packet per environment to its end. Equal seeds give equal packets and conditions."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from parlmesh.environments.spaces import observed
from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy
from parlmesh.types import Array

from .baselines import BASELINES
from .environment import MeshRoutingVectorEnv


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Means over packets."""

    reward: float
    delivered: float
    """Share of packets delivered."""
    etx: float
    """Mean transmissions per delivered packet."""
    stretch: float
    """Transmissions of delivered packets relative to their shortest paths."""
    delay: float
    """Transmission times per packet, including waiting; a lost packet counts as `ttl` hops at the mean delay per hop of
    delivered packets."""
    hops: float
    packets: int

    def to_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


def evaluate_baseline(name: str, settings: Mapping[str, Any], packets: int, seed: int) -> Evaluation:
    """Evaluates a baseline by name."""
    if name not in BASELINES:
        raise InvalidInput(f"baseline must be one of {', '.join(BASELINES)}, got {name!r}")
    envs = MeshRoutingVectorEnv(packets, **settings)
    baseline = BASELINES[name](envs, np.random.default_rng(seed))
    return _played(envs, seed, lambda seen: baseline.choose())


def evaluate_policy(policy: Policy, settings: Mapping[str, Any], packets: int, seed: int) -> Evaluation:
    """Evaluates a trained policy with its most likely actions."""
    envs = MeshRoutingVectorEnv(packets, **settings)
    read = observed(envs.single_observation_space)
    state = policy.initial_state(packets)

    def decide(seen: Any) -> Array:
        nonlocal state
        choice = policy.greedy(read.take(seen), read.mask(seen) if read.mask else None, state)
        state = choice.state
        return policy.to_environment(choice.action)

    return _played(envs, seed, decide)


def _played(envs: MeshRoutingVectorEnv, seed: int, decide: Callable[[Any], Array]) -> Evaluation:
    seen, _ = envs.reset(seed=seed)
    shortest = envs.packets.distance.copy()
    running = np.ones(envs.num_envs, np.bool_)
    reward, etx, delay, hops = (np.zeros(envs.num_envs) for _ in range(4))
    delivered = np.zeros(envs.num_envs, np.bool_)
    while running.any():
        seen, earned, terminated, _, info = envs.step(decide(seen))
        reward += np.where(running, earned, 0.0)
        etx += np.where(running, info["etx"], 0.0)
        delay += np.where(running, info["delay"], 0.0)
        hops += running
        delivered |= running & (info["delivered"] > 0)
        running &= ~terminated
    arrived = max(int(delivered.sum()), 1)
    per_hop = delay[delivered].sum() / max(hops[delivered].sum(), 1.0)
    return Evaluation(
        reward=float(reward.mean()),
        delivered=float(delivered.mean()),
        etx=float(etx[delivered].sum() / arrived),
        stretch=float(etx[delivered].sum() / max(shortest[delivered].sum(), 1e-9)),
        delay=float(np.where(delivered, delay, envs.packets.settings.ttl * per_hop).mean()),
        hops=float(hops[delivered].sum() / arrived),
        packets=envs.num_envs,
    )
