"""The plug-in `orchestration`: environment, algorithm and handlers of orchestration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from parlmesh.plugins import Plugin
from parlmesh.policies import PolicySpec
from parlmesh.training.trainer import Trainer
from parlmesh.types import EnvironmentSpec

from .jobs.environment import NAME, Orchestration, OrchestrationJobs
from .language import environment as language
from .language.chat_sub_agents import ChatSubAgent
from .live.handlers import SearchingSubAgent

if TYPE_CHECKING:
    from torch import nn


def _parl(
    policy: PolicySpec, environment: EnvironmentSpec, settings: Mapping[str, Any], rng: np.random.Generator
) -> Trainer:
    from .training.algorithm import ParlTrainer

    return ParlTrainer(policy, environment, settings, rng)


def _causal_lm(spec: PolicySpec) -> "nn.Module":
    from .language.causal_lm import CausalPolicy

    return CausalPolicy(spec)


plugin = Plugin(
    environments={
        NAME: {"entry_point": Orchestration, "vector_entry_point": OrchestrationJobs},
        language.NAME: {"entry_point": language.LanguageOrchestration, "max_episode_steps": 200},
    },
    handlers={SearchingSubAgent.kind: SearchingSubAgent, ChatSubAgent.kind: ChatSubAgent},
    algorithms={"parl": _parl},
    networks={"causal_lm": _causal_lm},
)
