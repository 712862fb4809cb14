"""What an operator may set for an actor process."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from parlmesh.config import Config, LogConfig, MetricsConfig
from parlmesh.security import SecurityConfig

METRICS_PORT = 9103
_OF_SERVERS = ("insecure", "require_client_certificate", "revoked", "tokens")


class LimitsConfig(Config):
    """Bounds of one actor: every wait has a deadline, every queue a size."""

    prefetch: int = Field(default=256, ge=0, le=4096)
    """Most assignments held beyond the free slots; the scheduler uses it for short tasks only. 0 = none."""
    unacknowledged_results: int = Field(default=4096, ge=1, le=1_000_000)
    """Results kept until the scheduler has recorded them; no new task is taken when there are more."""
    connect_seconds: float = Field(default=5.0, gt=0, le=300)
    """Longest wait for the scheduler's welcome."""
    reconnect_seconds: float = Field(default=1.0, gt=0, le=300)
    """Longest pause between two attempts to connect."""
    stop_seconds: float = Field(default=2.0, gt=0, le=300)
    """Time a cancelled handler has to stop before its thread is abandoned."""
    drain_seconds: float = Field(default=10.0, ge=0, le=3600)
    """Time running tasks have to end when the actor leaves."""
    stall_seconds: float = Field(default=300.0, ge=0, le=86400)
    """Time a handler's code may hold the whole process, heartbeats included, before the process ends itself and says
    where every thread was; 0 = no limit."""
    message_bytes: int = Field(default=1 << 30, ge=64 << 10, le=1 << 30)
    """Largest gRPC message sent or received. Servers say their own limits (`listen.max_message_bytes`); the lower one
    holds, and a task that does not fit is not given to this actor."""
    policy_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 34)
    """Largest policy that is fetched."""
    held_policy_bytes: int = Field(default=512 << 20, ge=1 << 10, le=1 << 40)
    """Serialised size of the versions of one run that are held because they were asked for by number, as opponents are,
    besides the newest ones; the last of them stays whatever it weighs."""
    policy_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest wait for a policy version."""
    relay_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Longest time in which nothing of a policy comes from the relay before the learner is asked for it."""
    relay_retry_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest pause between two looks at a relay that did not answer."""
    blob_bytes: int = Field(default=4 << 30, ge=1 << 20, le=1 << 44)
    """Large arrays kept on this host, where it is not the scheduler's: what was used the longest ago goes first."""
    blob_seconds: float = Field(default=300.0, gt=0, le=3600)
    """Longest time for one large array to come from the scheduler, or to go there."""
    uploads_in_flight: int = Field(default=4, ge=1, le=64)
    """Trajectories sent and not yet acknowledged, per actor."""
    upload_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest wait for the receipt of a trajectory, reconnections included."""


class PrivacyFloorConfig(Config):
    """What this node asks of federations, whatever their learner is content with."""

    min_noise_multiplier: float = Field(default=0.0, ge=0, le=1_000)
    """Least noise that an update is sent with, in units of the clip norm; 0 = as the federation has it."""
    max_clip_norm: float = Field(default=0.0, ge=0)
    """Longest clip norm of an update that is sent; 0 = any."""
    epsilon_budget: float = Field(default=0.0, ge=0)
    """What each node gives away at most, in all federations and lives together; 0 = no budget. Needs a ledger."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability that the guarantee does not hold."""
    ledger: Path | None = None
    """File in which it stands what was given away; a process has one of its own."""
    min_summed_nodes: int = Field(default=0, ge=0, le=200)
    """Updates are sent in secure sums of at least so many nodes only; 0 = also unmasked."""
    evaluate: bool = False
    """Judge models although a floor or a budget is set: what is found is told without noise."""

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.epsilon_budget and self.ledger is None:
            raise ValueError("epsilon_budget needs a ledger: a restart must not forget what was given away")
        return self


class ActorConfig(Config):
    """One actor process."""

    node_id: str = Field(default="", max_length=128)
    """Node this process runs on; empty = the name in its certificate, or the host's. With a token, the token's name."""
    actor_id: str = Field(default="", max_length=128)
    """Unique in the fleet; empty = the node id and the process id."""
    incarnation: int = Field(default=0, ge=0, lt=1 << 63)
    """Must grow with every start of one actor id; 0 = taken from the clock."""
    workers: int = Field(default=1, ge=1, le=1000)
    """Actors hosted by this process, each with a stream of its own; several have `-<k>` behind their actor id."""
    virtual_nodes: int = Field(default=0, ge=0, le=100_000)
    """Nodes of federations that each actor stands for, named `<actor id>#<k>`: a simulation. 0 = the node itself."""
    slots: int = Field(default=1, ge=1, le=256)
    """Tasks that one actor runs at once."""
    kinds: tuple[str, ...] = ()
    """Handler kinds to offer; empty = all that are installed."""
    handlers: dict[str, str] = Field(default_factory=dict)
    """Handlers installed besides the built-in ones: kind = "module:attribute"."""
    tasks: tuple[str, ...] = ()
    """Modules, or programs by their files, whose functions decorated with @parlmesh.task are offered."""
    profile: Path | None = None
    """File for a table of where the time went, written at the end; costs a little speed."""
    plugins: tuple[str, ...] = ()
    """Plug-ins to load: module:attribute, file.py:attribute, or the name of an installed one."""
    learning_tasks: dict[str, str] = Field(default_factory=dict)
    """Learning tasks for federations besides the built-in ones: name = "module:attribute"."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that tasks may ask for."""
    privacy: PrivacyFloorConfig = PrivacyFloorConfig()
    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler, host:port."""
    learner: str = "127.0.0.1:50052"
    """Address of the learner, host:port."""
    relay: str = ""
    """Address of a relay near this node, from which policies come instead, host:port; the learner still says which are
    new, and is asked for them while the relay does not answer. Empty = none."""
    policy_encoding: Literal["safetensors", "zstd", "bfloat16", "delta"] = "safetensors"
    """How policies travel: as they are, zstd or delta (the same in fewer bytes), bfloat16 (half the bytes, rounded)."""
    nice: int = Field(default=0, ge=0, le=19)
    """Added to the process's niceness, so that a learner on the same machine goes first."""
    security: SecurityConfig = SecurityConfig()
    metrics: MetricsConfig = MetricsConfig(port=METRICS_PORT)
    log: LogConfig = LogConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _can_be_checked(self) -> Self:
        if self.relay and self.policy_encoding == "bfloat16":
            raise ValueError(
                "policy_encoding is bfloat16 and relay is set: rounded weights have another digest than the learner's,"
                " so that a relay's could not be checked; choose safetensors, zstd or delta"
            )
        return self

    @model_validator(mode="after")
    def _calls_and_is_never_called(self) -> Self:
        given = {name for name in _OF_SERVERS if getattr(self.security, name)}
        if given:
            names = ", ".join(f"security.{name}" for name in sorted(given))
            raise ValueError(f"{names} is for servers, and an actor is called by nobody: leave it out")
        return self
