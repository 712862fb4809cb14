"""Settings for learning continuous actions from a replay; the string under a field is its help text."""

from typing import Annotated, Literal

from pydantic import Field

from parlmesh.config import Config

from ..replay.config import ReplayConfig

# One gradient step for every environment step, at minibatches of 256.
_REPLAY = ReplayConfig(capacity_steps=1_000_000, min_steps=1_000, samples_per_insert=256.0)


class _ContinuousConfig(Config):
    learning_rate: float = Field(default=3e-4, gt=0.0, le=1.0)
    """Adam's step size at the start, of actor and critics."""
    final_learning_rate_fraction: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the step size that is left when the step budget is used up; falls linearly."""
    minibatch_steps: int = Field(default=256, ge=1)
    """Steps per gradient step."""
    discount: float = Field(default=0.99, ge=0.0, le=1.0)
    """Worth of a reward one step later (gamma)."""
    n_step: int = Field(default=1, ge=1, le=1_000)
    """Rewards in a target before it relies on the target critics."""
    target_rate: float = Field(default=0.005, gt=0.0, le=1.0)
    """Fraction by which target networks follow after a gradient step (tau)."""
    reward_scale: float = Field(default=1.0, gt=0.0)
    """Rewards are multiplied by this before values are learnt from them; returns are reported unscaled."""
    random_steps: int = Field(default=1_000, ge=0)
    """Steps at the start whose actions are drawn uniformly from the whole range."""
    torch_threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of torch; null = 1 in a serial run and at lag 0, which makes them repeatable on any machine,
    otherwise as many as the learner has cores, at most 4."""
    replay: ReplayConfig = _REPLAY


class SacConfig(_ContinuousConfig):
    """Soft actor-critic: twin critics, and a temperature that keeps the policy as random as it should be."""

    temperature: Annotated[float, Field(ge=0.0)] | Literal["auto"] = "auto"
    """Weight of randomness (alpha); auto = learnt, so that the entropy stays at the target."""
    initial_temperature: float = Field(default=1.0, gt=0.0)
    """Start of a learnt temperature."""
    target_entropy: float | None = None
    """Entropy that a learnt temperature aims at, of actions in -1..1; null = minus the number of their dimensions."""


class Td3Config(_ContinuousConfig):
    """Twin delayed deterministic policy gradients."""

    learning_rate: float = Field(default=1e-3, gt=0.0, le=1.0)
    """Adam's step size at the start, of actor and critics."""
    exploration_noise: float = Field(default=0.1, ge=0.0, le=1.0)
    """Standard deviation of the noise on collected actions, which lie in -1..1 before scaling."""
    target_noise: float = Field(default=0.2, ge=0.0, le=1.0)
    """Standard deviation of the noise on actions in targets."""
    target_noise_limit: float = Field(default=0.5, ge=0.0, le=2.0)
    """Largest noise on actions in targets."""
    policy_interval: int = Field(default=2, ge=1, le=1_000)
    """Gradient steps of the critics per step of the actor, after which targets follow."""
