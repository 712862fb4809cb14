"""Settings of a run, wherever it is trained; the string under a field is its help text."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from parlmesh.config import Config

from ..continuous.config import SacConfig, Td3Config
from .dqn import DqnConfig
from .opponents import OpponentsConfig
from .ppo import PpoConfig
from .q_learning import QLearningConfig
from .search import SearchConfig

# Defaults of an algorithm where they differ from PPO's. One gradient step for every environment step takes long, so
# such policies are published after only a few steps.
_CONTINUOUS = {"num_envs": 4, "trajectory_steps": 8, "hidden": (256, 256), "activation": "relu"}
_USUAL: dict[Any, dict[str, Any]] = {"sac": _CONTINUOUS, "td3": _CONTINUOUS}


class EnvironmentConfig(Config):
    """The environment that actors step."""

    id: str = Field(default="CartPole-v1", min_length=1)
    """Gymnasium's name of the environment; module:name imports a module first."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of its constructor."""
    evaluation: dict[str, Any] = Field(default_factory=dict)
    """Arguments that evaluations use in place of or in addition to these."""
    observed: tuple[int, ...] | None = None
    """Indices of the numbers in a flat observation that the policy sees; null = all."""
    wrappers: dict[str, dict[str, Any] | None] = Field(default_factory=dict)
    """Gymnasium's wrappers that change observations or rewards, innermost first: names with arguments."""
    image: Literal["auto", "chw", "hwc"] = "auto"
    """Axis of an image that has the channels; the policy sees them first. auto = last, if that axis is the shortest."""
    stacked: int = Field(default=1, ge=1, le=64)
    """How many of the last observations the policy sees together; images are stacked as channels."""
    threads: int | None = Field(default=None, ge=1, le=1_024)
    """Threads of a slot that step its environments in parallel, if they have no vector form; null = 1, or up to 16 once
    steps are found to wait for something other than the processor."""
    float64: bool = False
    """Keep the precision of float64 observations; otherwise they become float32 as they leave the environment."""

    def evaluated(self) -> dict[str, Any]:
        """The environment that evaluations step."""
        return {**self.model_dump(), "kwargs": {**self.kwargs, **self.evaluation}}


class TrainingConfig(Config):
    """One run."""

    environment: EnvironmentConfig = EnvironmentConfig()
    seed: int = Field(default=0, ge=0, lt=2**53)
    """Decides every random number of the run."""
    step_budget: int = Field(default=300_000, ge=1)
    """Environment steps after which the run ends."""
    goal_return: float | None = 475.0
    """Mean return of an evaluation at which the run ends; null = continue to the budget."""
    goal_evaluations: int = Field(default=3, ge=1, le=100)
    """Evaluations in a row that must reach the goal: a single one may be luck."""
    num_envs: int = Field(default=64, ge=1, le=65_536)
    """Environments stepped together by one slot; 4 for sac and td3."""
    trajectory_steps: int = Field(default=32, ge=1, le=65_536)
    """Steps of every environment in one trajectory; 8 for sac and td3."""
    restart_steps: int = Field(default=4_096, ge=0)
    """Steps after which an environment starts its next episode from a fresh seed, so that a serial run can be resumed
    exactly without replaying everything; no episode is cut short for it. 0 = never, and a resumed serial run plays
    other games. A fleet that may lag cannot be resumed exactly and never does it."""
    batch_trajectories: int = Field(default=1, ge=1, le=4_096)
    """Trajectories in one update."""
    slots: int = Field(default=0, ge=0, le=100_000)
    """Slots that collect. If they exceed (max_policy_lag + 1) x batch_trajectories, num_envs is divided among
    them and batch_trajectories grows, so that all are busy and a batch stays as large. 0 = both stay unchanged."""
    max_policy_lag: int = Field(default=1, ge=0, le=1_000)
    """Most versions a trajectory may be behind the policy it trains; 0 = strictly on-policy."""
    network: str = Field(default="mlp", min_length=1, max_length=100)
    """mlp; recurrent has a memory (a GRU as its last hidden layer), conv, minatar (10 x 10), nature
    (84 x 84) and impala (deep, residual) read images; or a plug-in's."""
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(default=(64, 64), max_length=64)
    """Hidden layers of the policy and of the value network; 256, 256 for sac and td3."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation between the layers; relu for sac and td3."""
    normalise_observations: bool = False
    """Give observations mean 0 and deviation 1, by statistics that travel with the policy."""
    backend: Literal["auto", "numpy", "torch"] = "auto"
    """The library that computes gradients: numpy for perceptrons, torch's autograd for everything; auto = numpy if
    possible. sac and td3 always use torch."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where torch computes gradients; auto = CUDA if available. cuda uses torch for perceptrons too."""
    processes: int = Field(default=0, ge=0, le=1_024)
    """Processes of the learner that share every gradient step, for ppo, dqn and sac; 0 = as many as a launcher
    such as torchrun started, otherwise 1. Without a launcher, the learner starts the others on its own machine."""
    process_seconds: float = Field(default=120.0, gt=0.0, le=86_400.0)
    """Longest time one of them may take to answer before all are restarted."""
    evaluation_interval_steps: int = Field(default=10_000, ge=1)
    """Environment steps between two evaluations."""
    evaluation_episodes: int = Field(default=20, ge=1, le=10_000)
    """Whole episodes of play in one evaluation."""
    evaluation_play: Literal["greedy", "sampled"] = "greedy"
    """Whether evaluations take the likeliest actions, or draw them as in training. A warning is logged when training
    episodes return much more than evaluations."""
    evaluation_seconds: float | None = Field(default=None, gt=0.0, le=1e6)
    """Longest evaluation; null = 120, or longer if the environment's measured speed requires it."""
    checkpoint_interval_versions: int = Field(default=10, ge=1, le=100_000)
    """Versions between two checkpoints."""
    kept_checkpoints: int = Field(default=3, ge=1, le=1_000)
    """Newest checkpoints to keep; older ones are deleted."""
    kept_models: int = Field(default=10, ge=1, le=1_000)
    """Newest models to keep; older ones are deleted, except the best and the promoted one."""
    max_bad_updates: int = Field(default=5, ge=1)
    """The run fails after this many updates in a row that are not finite."""
    max_failed_rollouts: int = Field(default=20, ge=1)
    """The run fails after this many failed rollouts in a row, on every actor and over some seconds."""
    algorithm: str = Field(default="ppo", min_length=1, max_length=100)
    """ppo, dqn, sac and td3 (both for continuous actions), q_learning (a table instead of a network), each with its
    section; or a plug-in's, with `custom`."""
    opponents: OpponentsConfig = OpponentsConfig()
    search: SearchConfig = SearchConfig()
    ppo: PpoConfig = PpoConfig()
    dqn: DqnConfig = DqnConfig()
    sac: SacConfig = SacConfig()
    td3: Td3Config = Td3Config()
    q_learning: QLearningConfig = QLearningConfig()
    custom: dict[str, Any] = Field(default_factory=dict)
    """Settings of a plug-in's algorithm."""

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, given: Any) -> Any:
        name = given.get("algorithm") if isinstance(given, dict) else None
        usual = _USUAL.get(name) if isinstance(name, str) else None
        return {**usual, **given} if usual else given

    @property
    def reward_discount(self) -> float | None:
        """The discount of the sums that collectors carry from fragment to fragment; None when they are not needed."""
        return self.ppo.discount if self.algorithm == "ppo" and self.ppo.normalise_rewards else None
