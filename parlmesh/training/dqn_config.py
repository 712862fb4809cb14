"""Settings of deep Q-learning and its replay; the string under a field is its help text."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config

from .exploration_config import ExplorationConfig

_GIBIBYTE = 1024**3


class ReplayConfig(Config):
    """Steps that are kept and trained on more than once."""

    kind: Literal["uniform", "prioritised"] = "uniform"
    """Which steps are drawn: all alike, or the worse predicted the likelier."""
    capacity_steps: int = Field(default=50_000, ge=1, le=1_000_000_000)
    """Steps kept; when it is full the oldest go first."""
    capacity_bytes: int = Field(default=_GIBIBYTE, ge=1024)
    """Bytes kept at most, whatever capacity_steps says; a step holds its own and its next observation,
    but images are kept once, also those that stacked observations share."""
    min_steps: int = Field(default=1_000, ge=1)
    """Steps collected before the first is trained on."""
    samples_per_insert: float = Field(default=16.0, gt=0.0, le=10_000.0)
    """How often a step is trained on, on average; sampling never exceeds this ratio."""
    priority_exponent: float = Field(default=0.6, ge=0.0, le=1.0)
    """How much priorities count (alpha), for prioritised; 0 = not at all."""
    importance_start: float = Field(default=0.4, ge=0.0, le=1.0)
    """How much of the bias of prioritised draws is undone at the start (beta)."""
    importance_final: float = Field(default=1.0, ge=0.0, le=1.0)
    """The same at the end of the step budget."""
    checkpointed: bool = True
    """Save the steps with every checkpoint, so that a resumed run goes on exactly; without, it first collects
    min_steps anew. Choose false where the replay is large, or checkpoint seldom."""


class DqnConfig(Config):
    """Deep Q-learning with double targets, n-step returns and a dueling head where asked."""

    learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0)
    """Adam's step size at the start."""
    final_learning_rate_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the step size that is left when the step budget is used up; falls linearly."""
    minibatch_steps: int = Field(default=64, ge=1)
    """Steps per gradient step."""
    discount: float = Field(default=0.99, ge=0.0, le=1.0)
    """Worth of a reward one step later (gamma)."""
    n_step: int = Field(default=3, ge=1, le=1_000)
    """Rewards in a target before it relies on the target network."""
    double: bool = True
    """Let the network in training choose the action that the target network values."""
    dueling: bool = False
    """Split the values of actions into the value of the state and advantages."""
    target_interval: int = Field(default=100, ge=1)
    """Gradient steps between two updates of the target network."""
    target_rate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the way that the target network then follows; 1 = it becomes a copy."""
    huber_threshold: float = Field(default=1.0, gt=0.0)
    """Errors beyond this pull no harder."""
    gradient_norm: float = Field(default=10.0, gt=0.0)
    """Longer gradients are shortened to this norm."""
    reward_scale: float = Field(default=1.0, gt=0.0)
    """Rewards are multiplied by this before values are learnt from them; returns are reported unscaled."""
    torch_threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of torch, when the backend is torch; null = 1 in a serial run and at lag 0, which then repeat themselves
    on any machine, else as many as the learner has cores, at most 4."""
    exploration: ExplorationConfig = ExplorationConfig()
    replay: ReplayConfig = ReplayConfig()
