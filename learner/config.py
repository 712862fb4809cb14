"""The learner's configuration; the string under a field is its help text."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig
from parlmesh.security import SecurityConfig
from parlmesh.training.settings.run import TrainingConfig as TrainingConfig

MEBIBYTE = 1024 * 1024
RUN_ID = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


class ExperienceConfig(Config):
    """Limits on the experience that the learner accepts."""

    max_trajectory_bytes: int = Field(default=4 * MEBIBYTE, ge=1024, le=1024 * MEBIBYTE)
    """Largest trajectory. If unset, it grows to fit the run that starts by itself, up to 256 MiB; so does
    listen.max_message_bytes."""
    shared_memory: bool = True
    """Let actors that run as the same user on this host hand over trajectories in shared memory; others send them."""
    max_queued_trajectories: int = Field(default=1_024, ge=1)
    """Trajectories that may wait for an update; more are refused."""
    max_reward: float = Field(default=1e8, gt=0.0, le=3.4e38)
    """Largest absolute reward of a step; a trajectory with a larger one is refused."""
    max_observation: float = Field(default=1e9, gt=0.0, le=3.4e38)
    """Largest absolute number in an observation."""
    max_log_prob: float = Field(default=100.0, gt=0.0, le=3.4e38)
    """Largest absolute log-probability of an action, for each number in the action."""
    rollout_timeout_seconds: float = Field(default=60.0, gt=0.0)
    """A rollout that takes longer is given to another actor; so is one that takes 20 times as long as usual, but at
    least 10 s. In a serial run, the longest time without a step."""


class WandbConfig(Config):
    """Curves for Weights & Biases, when the package wandb is installed."""

    enabled: bool = False
    """Whether to write them."""
    project: str = Field(default="parlmesh", min_length=1, max_length=128)
    """Project of the runs."""
    mode: Literal["offline", "online"] = "offline"
    """offline writes files to the run's folder, for `wandb sync`; online sends them immediately."""


class TrackingConfig(Config):
    """Where a run's curves are sent besides TensorBoard."""

    wandb: WandbConfig = WandbConfig()


class FederationsConfig(Config):
    """Federated rounds that this learner coordinates."""

    learning_tasks: dict[str, str] = Field(default_factory=dict)
    """Learning tasks installed besides the built-in ones: name = "module:attribute"."""
    max_running: int = Field(default=4, ge=1, le=1_000)
    """Federations that may run at once."""
    max_model_bytes: int = Field(default=1024 * MEBIBYTE, ge=1024)
    """Largest model."""


class LearnerConfig(Config):
    """The learner: serves policies, takes in trajectories, trains."""

    mode: Literal["fleet", "serial", "federation"] = "fleet"
    """fleet: actors collect; serial: this process collects too, with the same code; federation: no run of its own."""
    run_id: str = Field(default="run", pattern=f"^{RUN_ID}$")
    """Name of the run that starts by itself; others can be created over gRPC."""
    run_dir: Path = Path("runs/run")
    """Where the run's files are written; a run with checkpoints there continues from the newest."""
    reopen_ended: bool = False
    """Continue the run in run_dir even if it has ended; a run with a changed configuration continues without this."""
    runs_dir: Path | None = None
    """Where runs created over gRPC are kept, each in its own folder; null = runs in run_dir."""
    max_runs: int = Field(default=1_000, ge=1, le=10_000)
    """Runs that are kept, ended ones included; more are refused."""
    max_policy_bytes: int = Field(default=256 * MEBIBYTE, ge=1024)
    """Largest policy of a run, computed from its layer sizes; by default, actors accept no larger one."""
    max_running_runs: int = Field(default=4, ge=1, le=64)
    """Runs that may train at once, each in its own thread; more are refused."""
    profile: Path | None = None
    """File for a table of where the time went, written at the end; costs a little speed."""
    plugins: tuple[str, ...] = ()
    """Plug-ins to load: module:attribute, file.py:attribute, or the name of an installed one."""
    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler."""
    listen: ListenConfig = ListenConfig(port=50052)
    metrics: MetricsConfig = MetricsConfig(port=9102)
    log: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    experience: ExperienceConfig = ExperienceConfig()
    federations: FederationsConfig = FederationsConfig()
    training: TrainingConfig = TrainingConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def created_runs_dir(self) -> Path:
        """Where runs created over gRPC are kept."""
        return self.runs_dir if self.runs_dir is not None else self.run_dir / "runs"
