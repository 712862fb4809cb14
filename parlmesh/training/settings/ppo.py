"""Settings of proximal policy optimisation; the string under a field is its help text."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config


class PpoConfig(Config):
    """Proximal policy optimisation. The defaults hold 475 on CartPole-v1 after about 60,000 steps."""

    learning_rate: float = Field(default=3e-3, gt=0.0, le=1.0)
    """Adam's step size at the start."""
    final_learning_rate_fraction: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the step size that is left when the step budget is used up; falls linearly."""
    epochs: int = Field(default=4, ge=1, le=100)
    """Passes over each batch."""
    minibatch_steps: int = Field(default=256, ge=1)
    """Steps per gradient step."""
    targets: Literal["auto", "gae", "weighted", "vtrace", "group"] = "auto"
    """The targets of advantages and values. gae trusts the batch; weighted also weights each step by how much likelier
    it has become since; vtrace also looks less far ahead where the policy would now act differently; group compares
    whole episodes that began with the same observation, and needs no values; auto = by the oldest experience allowed
    (max_policy_lag): gae at 0, weighted at 1, vtrace above."""
    discount: float = Field(default=0.98, ge=0.0, le=1.0)
    """Worth of a reward one step later (gamma)."""
    final_discount: float | None = Field(default=None, ge=0.0, le=1.0)
    """The discount when the step budget is used up, reached linearly; null = constant. Looking less far ahead at first
    keeps a policy that fears a fall from learning to stand still; looking further later makes falls rare."""
    smoothing: float = Field(default=0.8, ge=0.0, le=1.0)
    """Reach of the advantage estimate (lambda)."""
    clip: float = Field(default=0.2, gt=0.0, le=1.0)
    """Largest change of an action's probability ratio that is still rewarded."""
    objective: Literal["clipped", "log_ratio"] = "clipped"
    """The treatment of steps whose ratio has left 1 ± clip: clipped leaves out those that would move further away,
    log_ratio leaves out all of them, whatever their advantage."""
    log_ratio_penalty: float = Field(default=0.0, ge=0.0)
    """With log_ratio, the cost of the square of a step's log-ratio."""
    final_clip_fraction: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of the clip that is left when the step budget is used up; falls linearly."""
    value_clip: float | None = Field(default=None, gt=0.0)
    """Largest change of a value in one update that is still rewarded; null = any."""
    value_coefficient: float = Field(default=0.5, ge=0.0)
    """Weight of the value error in the loss."""
    entropy_coefficient: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy bonus in the loss."""
    final_entropy_fraction: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the entropy bonus that is left when the step budget is used up; falls linearly."""
    gradient_norm: float = Field(default=1.0, gt=0.0)
    """Longer gradients are shortened to this norm."""
    adam_epsilon: float = Field(default=1e-5, gt=0.0, le=1.0)
    """Adam's epsilon: parameters whose gradients are smaller move less."""
    target_kl: float | None = Field(default=0.03, gt=0.0)
    """An epoch whose mean KL divergence exceeds this is the last of its update; null = all epochs."""
    normalise_advantages: bool | Literal["minibatch"] = True
    """Give advantages mean 0 and deviation 1: those of each batch, or those of each minibatch."""
    reward_scale: float = Field(default=1.0, gt=0.0)
    """Rewards are multiplied by this before values are learnt from them; returns are reported unscaled."""
    normalise_rewards: bool = False
    """Also divide rewards by the running deviation of their discounted sums: a network whose policy and values share
    layers learns little while values are large."""
    reward_clip: float | None = Field(default=None, gt=0.0)
    """Rewards are clipped to ± this after scaling; null = not at all."""
    actions: Literal["squashed", "clipped"] = "squashed"
    """How continuous actions are kept within their bounds: by tanh, or by clipping."""
    initial_log_std: float = Field(default=0.0, ge=-10.0, le=2.0)
    """Spread of continuous actions at the start, as the logarithm of the standard deviation."""
    torch_threads: int | None = Field(default=None, ge=1, le=256)
    """Threads of torch, when the backend is torch; null = 1 in a serial run and at lag 0, which makes them
    repeatable on any machine, otherwise as many as the learner has cores, at most 4."""
