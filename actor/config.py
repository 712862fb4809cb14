"""The settings of an actor process."""

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
    """Most results kept until the scheduler has recorded them; at this many, no new task is taken."""
    connect_seconds: float = Field(default=5.0, gt=0, le=300)
    """Longest wait for the scheduler's welcome."""
    reconnect_seconds: float = Field(default=1.0, gt=0, le=300)
    """Longest pause between two attempts to connect."""
    stop_seconds: float = Field(default=2.0, gt=0, le=300)
    """Time a cancelled handler has to stop before its thread is abandoned."""
    drain_seconds: float = Field(default=10.0, ge=0, le=3600)
    """Time running tasks have to end when the actor leaves."""
    stall_seconds: float = Field(default=300.0, ge=0, le=86400)
    """Time a handler may block the whole process, heartbeats included, before the process prints the stack of every
    thread and exits; 0 = no limit."""
    message_bytes: int = Field(default=1 << 30, ge=64 << 10, le=1 << 30)
    """Largest gRPC message sent or received. Servers announce their own limits (`listen.max_message_bytes`); the lower
    one applies, and this actor gets no task that exceeds it."""
    policy_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 34)
    """Largest policy that is fetched."""
    held_policy_bytes: int = Field(default=512 << 20, ge=1 << 10, le=1 << 40)
    """Serialised size of the versions of one run that are kept, besides the newest ones, because they were requested by
    number, as opponents are; the last one requested is always kept, whatever its size."""
    policy_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest wait for a policy version."""
    relay_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Longest time without data from the relay before the learner is asked for the policy."""
    relay_retry_seconds: float = Field(default=10.0, gt=0, le=3600)
    """Longest pause between two checks of a relay that did not answer."""
    blob_bytes: int = Field(default=4 << 30, ge=1 << 20, le=1 << 44)
    """Size of the large arrays kept on this host if it is not the scheduler's; the least recently used are removed
    first."""
    blob_seconds: float = Field(default=300.0, gt=0, le=3600)
    """Longest transfer of one large array from or to the scheduler."""
    uploads_in_flight: int = Field(default=4, ge=1, le=64)
    """Trajectories sent and not yet acknowledged, per actor."""
    upload_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest wait for the receipt of a trajectory, reconnections included."""


class PrivacyFloorConfig(Config):
    """Requirements of this node for federations, whatever their learner accepts."""

    min_noise_multiplier: float = Field(default=0.0, ge=0, le=1_000)
    """Least noise on an update that is sent, in units of the clip norm; 0 = whatever the federation asks for."""
    max_clip_norm: float = Field(default=0.0, ge=0)
    """Largest clip norm of an update that is sent; 0 = any."""
    epsilon_budget: float = Field(default=0.0, ge=0)
    """Most epsilon that each node spends, over all federations and restarts; 0 = no budget. Needs a ledger."""
    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability that the guarantee does not hold."""
    ledger: Path | None = None
    """File that records the spent privacy; each process needs its own."""
    min_summed_nodes: int = Field(default=0, ge=0, le=200)
    """Send updates only in secure sums of at least this many nodes; 0 = also unmasked."""
    evaluate: bool = False
    """Evaluate models despite a floor or a budget: the results are sent without noise."""

    @model_validator(mode="after")
    def _kept(self) -> Self:
        if self.epsilon_budget and self.ledger is None:
            raise ValueError("epsilon_budget needs a ledger: a restart must not forget the privacy spent")
        return self


class ActorConfig(Config):
    """One actor process."""

    node_id: str = Field(default="", max_length=128)
    """Node this process runs on; empty = the name in its certificate, or the host's. With a token, the token's name."""
    actor_id: str = Field(default="", max_length=128)
    """Unique in the fleet; empty = the node id and the process id."""
    incarnation: int = Field(default=0, ge=0, lt=1 << 63)
    """Must grow with every start of one actor id; 0 = taken from the clock."""
    actors: int = Field(default=1, ge=1, le=1000)
    """Actors in this process, each with its own stream; if there are several, their actor ids end in `-<k>`."""
    virtual_nodes: int = Field(default=0, ge=0, le=100_000)
    """Federation nodes that each actor simulates, named `<actor id>#<k>`; 0 = none, only the node itself."""
    slots: int = Field(default=1, ge=1, le=256)
    """Tasks that one actor runs at once."""
    kinds: tuple[str, ...] = ()
    """Handler kinds to offer; empty = all that are installed."""
    handlers: dict[str, str] = Field(default_factory=dict)
    """Handlers installed besides the built-in ones: kind = "module:attribute"."""
    tasks: tuple[str, ...] = ()
    """Modules or program files whose functions decorated with @parlmesh.task are offered."""
    profile: Path | None = None
    """File for a table of where time was spent, written at the end; costs a little speed."""
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
    """Address of a nearby relay that serves policies instead of the learner, host:port; the learner still announces new
    versions, and serves them while the relay does not answer. Empty = none."""
    policy_encoding: Literal["safetensors", "zstd", "bfloat16", "delta"] = "safetensors"
    """How policies travel: as they are, zstd or delta (the same in fewer bytes), bfloat16 (half the bytes, rounded)."""
    nice: int = Field(default=0, ge=0, le=19)
    """Added to the process's niceness, so that a learner on the same machine has priority."""
    security: SecurityConfig = SecurityConfig()
    metrics: MetricsConfig = MetricsConfig(port=METRICS_PORT)
    log: LogConfig = LogConfig()
    limits: LimitsConfig = LimitsConfig()

    @model_validator(mode="after")
    def _can_be_checked(self) -> Self:
        if self.relay and self.policy_encoding == "bfloat16":
            raise ValueError(
                "policy_encoding is bfloat16 and relay is set: rounded weights do not match the learner's digest,"
                " so policies from a relay could not be checked; choose safetensors, zstd or delta"
            )
        return self

    @model_validator(mode="after")
    def _calls_and_is_never_called(self) -> Self:
        given = {name for name in _OF_SERVERS if getattr(self.security, name)}
        if given:
            names = ", ".join(f"security.{name}" for name in sorted(given))
            raise ValueError(f"{names} is for servers, and nothing calls an actor: leave it out")
        return self
