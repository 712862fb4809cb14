"""The built-in plug-in `parlmesh.orchestration.plugin:plugin`: environment, algorithm and handlers of orchestration."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

from .jobs.environment import NAME, Orchestration, OrchestrationJobs
from .live.handlers import SearchingSubAgent


def _parl(
    policy: PolicySpec, environment: EnvironmentSpec, settings: Mapping[str, Any], rng: np.random.Generator
) -> Trainer:
    from .training.algorithm import ParlTrainer

    return ParlTrainer(policy, environment, settings, rng)


plugin = Plugin(
    environments={NAME: {"entry_point": Orchestration, "vector_entry_point": OrchestrationJobs}},
    handlers={SearchingSubAgent.kind: SearchingSubAgent},
    algorithms={"parl": _parl},
)
