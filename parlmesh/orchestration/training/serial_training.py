"""Trains in this process with a fleet's collector and trainer, for comparing many seeds."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parlmesh.environments import environment_spec
from parlmesh.plugins import load_plugins
from parlmesh.policies import PolicySpec, load_policy
from parlmesh.rollouts import Collector, collector_seed

from ..jobs.environment import NAME
from .algorithm import ParlTrainer
from .variants import Variant

PLUGIN = "orchestration"
_ACTOR = "actor-0"


@dataclass
class Trained:
    """A policy, and the curves of its training."""

    policy: bytes
    seconds: float
    steps: int
    curve: list[dict[str, float]] = field(default_factory=list)


def train_here(variant: Variant, settings: Mapping[str, Any], seed: int, steps: int) -> Trained:
    """Trains a variant of `settings`, a preset's `training` section, for `steps` environment steps."""
    load_plugins([PLUGIN])
    environment = {"id": NAME, "kwargs": dict(variant.environment)}
    spec = environment_spec(environment)
    policy = PolicySpec.for_environment(spec, normalised=bool(settings.get("normalise_observations")))
    trainer = ParlTrainer(policy, spec, merged(settings["custom"], variant.custom), np.random.default_rng(seed))
    collector = Collector(environment, settings["num_envs"], collector_seed(seed, _ACTOR, 1))
    started, done, curve = time.perf_counter(), 0, []
    try:
        while done < steps:
            fragment = collector.collect(load_policy(trainer.policy_blob()), settings["trajectory_steps"])
            update = trainer.update([fragment], done / steps)
            done += update.steps
            curve.append({"step": float(done), **update.metrics})
    finally:
        collector.close()
    return Trained(trainer.policy_blob(), time.perf_counter() - started, done, curve)


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the changes applied, section by section."""
    found = dict(settings)
    for name, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if nested else value
    return found
