"""Settings of the algorithm `parl`, under `training.custom`; the string under a field is its help text."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config
from parlmesh.training.settings.ppo import PpoConfig


class RewardConfig(Config):
    """The auxiliary terms and how they fade."""

    lambda1: float = Field(default=0.3, ge=0.0, le=1.0)
    """Weight of r_parallel at the start."""
    lambda2: float = Field(default=0.2, ge=0.0, le=1.0)
    """Weight of r_finish at the start."""
    anneal_share: float = Field(default=0.6, gt=0.0, le=1.0)
    """Share of the step budget after which both weights are 0."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the weights fall; constant = never."""
    form: Literal["report", "blog"] = "report"
    """Three terms as in the report, or two as in the blog."""
    only_where_wide: bool = True
    """Pay the auxiliary terms only for jobs that had several sub-tasks ready at once. A chain has nothing to
    parallelise, and an orchestrator that is paid for sub-agents there unlearns working itself."""
    cap: int = Field(default=50, ge=1, le=1_000)
    """Sub-agents at which r_parallel reaches 1; more earn nothing."""


class PriorConfig(Config):
    """Behaviour cloning of a single agent before training starts."""

    updates: int = Field(default=0, ge=0, le=100_000)
    """Gradient steps; 0 = none, the policy starts at random."""
    randomness: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of random actions in the cloned behaviour."""


class ParlConfig(Config):
    """PPO with the reward of an orchestrator."""

    reward: RewardConfig = RewardConfig()
    prior: PriorConfig = PriorConfig()
    ppo: PpoConfig = PpoConfig()
    """As `training.ppo`; targets auto = vtrace, which without lag is the same as gae."""
    assigning: Literal["separate", "automatic"] = "separate"
    """The environment's `assigning`; the prior is cloned from it."""
