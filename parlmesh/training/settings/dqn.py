"""Settings of deep Q-learning; the string under a field is its help text."""

from pydantic import Field

from parlmesh.config import Config

from ..replay.config import ReplayConfig
from .exploration import ExplorationConfig


class DqnConfig(Config):
    """Deep Q-learning with double targets, n-step returns and an optional dueling head."""

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
    """Let the network in training choose the action whose value the target network gives."""
    dueling: bool = False
    """Split the values of actions into the value of the state and advantages."""
    target_interval: int = Field(default=100, ge=1)
    """Gradient steps between two updates of the target network."""
    target_rate: float = Field(default=1.0, gt=0.0, le=1.0)
    """Fraction by which the target network then follows; 1 = it becomes a copy."""
    huber_threshold: float = Field(default=1.0, gt=0.0)
    """Errors beyond this have no larger gradient."""
    gradient_norm: float = Field(default=10.0, gt=0.0)
    """Longer gradients are shortened to this norm."""
    reward_scale: float = Field(default=1.0, gt=0.0)
    """Rewards are multiplied by this before values are learnt from them; returns are reported unscaled."""
    torch_threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of torch, when the backend is torch; null = 1 in a serial run and at lag 0, which makes them
    repeatable on any machine, otherwise as many as the learner has cores, at most 4."""
    exploration: ExplorationConfig = ExplorationConfig()
    replay: ReplayConfig = ReplayConfig()
