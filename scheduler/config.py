"""The scheduler's settings. Every default is meant for a fleet of up to a few thousand actors."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig
from parlmesh.limits import LONGEST_RUN_SECONDS
from parlmesh.postgres.connection_settings import check_url
from parlmesh.security import SecurityConfig


class QueueConfig(Config):
    """Which tasks are accepted, and in which order they leave the queue."""

    max_tasks: int = Field(default=1_000_000, ge=1)
    """Unfinished tasks held at once; a request that would exceed it gets RESOURCE_EXHAUSTED with a retry hint."""
    max_bytes: int = Field(default=2 * 1024**3, ge=1)
    """Payload bytes of unfinished tasks held at once."""
    max_payload_bytes: int = Field(default=4 * 1024**2, ge=1)
    """Largest encoded payload of one task, and of one result."""
    max_dependencies: int = Field(default=10_000, ge=0)
    """Largest number of dependencies of one task."""
    aging_seconds: float = Field(default=60.0, gt=0)
    """How much longer a task must wait to overtake the next higher priority."""
    refuse_unknown_kinds: bool = True
    """Refuse a kind that no actor has announced (see retention.kind_seconds), once any is known; when off, such tasks
    wait."""


class RetryConfig(Config):
    """What happens after a failed attempt."""

    max_attempts: int = Field(default=3, ge=1)
    """Attempts of a task that sets no number of its own."""
    first_delay_seconds: float = Field(default=0.1, ge=0)
    """Wait before the second attempt; doubles with each one after that."""
    longest_delay_seconds: float = Field(default=30.0, ge=0)
    """Longest wait before another attempt."""
    quarantine_losses: int = Field(default=3, ge=1)
    """A task that lost this many actors is quarantined: it is never assigned again."""
    run_timeout_seconds: float = Field(default=3600.0, gt=0, le=LONGEST_RUN_SECONDS)
    """Longest run of one attempt of a task that sets no limit of its own."""


class NamespaceConfig(Config):
    """Limits of a caller that is confined to a namespace; others share the fleet."""

    max_priority: Literal["background", "low", "normal", "high", "critical"] = "high"
    """Highest priority of its tasks."""
    max_run_seconds: float = Field(default=86_400.0, gt=0, le=LONGEST_RUN_SECONDS)
    """Longest run_timeout of its tasks."""
    slots_share: float = Field(default=0.5, gt=0, le=1)
    """Share of all connected slots that its tasks may hold at once, but at least one slot; its other tasks wait."""


class LeaseConfig(Config):
    """How long an actor keeps the tasks it was given."""

    heartbeat_seconds: float = Field(default=1.0, gt=0)
    """Interval at which actors report what they work on."""
    duration_seconds: float = Field(default=10.0, gt=0)
    """A lease that is not renewed for this long ends, and its task is assigned again."""
    reconnect_seconds: float = Field(default=3.0, ge=0)
    """How long an actor whose stream broke has to reconnect before it loses its leases."""

    @model_validator(mode="after")
    def _heartbeats_fit_into_a_lease(self) -> Self:
        if self.duration_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                f"duration_seconds is {self.duration_seconds}; it must be at least twice heartbeat_seconds "
                f"({self.heartbeat_seconds}), or a single late heartbeat loses every lease"
            )
        return self


class StrikeConfig(Config):
    """When a node is quarantined for bad answers."""

    limit: int = Field(default=5, ge=0)
    """Bad answers within the window that put a node in quarantine; 0 = never."""
    window_seconds: float = Field(default=3600.0, gt=0)
    """How long a bad answer counts."""
    quarantine_seconds: float = Field(default=600.0, gt=0)
    """How long a quarantine lasts unless an operator ends it."""


class DispatchConfig(Config):
    """How tasks are spread over actors."""

    prefetch_seconds: float = Field(default=0.02, ge=0)
    """Seconds of work an actor may hold beyond its slots, by the measured duration of its tasks; if these are longer
    and of even length, it gets the next task this long before the current one ends."""
    rebalance_seconds: float = Field(default=0.5, gt=0)
    """Interval at which tasks that have not started move from full actors to idle ones."""
    tick_seconds: float = Field(default=0.05, gt=0, le=1)
    """Interval at which timeouts and back-offs are checked."""
    awake_seconds: float = Field(default=0.0, ge=0, le=60)
    """How long this machine's cores are kept awake after a task arrives or ends: shorter round trips, more power used.
    0 = not at all; needs write access to /dev/cpu_dma_latency."""


class RetentionConfig(Config):
    """How long finished tasks, lost actors and unused kinds are remembered."""

    max_tasks: int = Field(default=100_000, ge=0)
    """Finished tasks kept."""
    max_seconds: float = Field(default=3600.0, ge=0)
    """How long a finished task is kept."""
    max_bytes: int = Field(default=256 * 1024**2, ge=0)
    """Payload and result bytes of finished tasks kept."""
    actor_seconds: float = Field(default=300.0, ge=0)
    """How long a lost actor is listed."""
    actors_per_node: int = Field(default=100, ge=0)
    """Lost actors of one node that are listed; beyond that, those lost first are forgotten."""
    kind_seconds: float = Field(default=86_400.0, ge=0)
    """How long a kind stays known after an actor last announced it."""
    trace_events: int = Field(default=100_000, ge=0)
    """Retried and lost attempts kept for GetTrace; last attempts are read from the finished tasks."""


class BlobConfig(Config):
    """Large arrays beside tasks: files that processes of this host share. The store holds none of them."""

    folder: Path | None = None
    """Where they are kept; unset = a folder of this scheduler's own in /dev/shm, or among the temporary files if
    /dev/shm has less than 1 GiB. Only processes of the same user share it; others, and other hosts, are sent the arrays
    they need."""
    least_bytes: int = Field(default=64 * 1024, ge=0)
    """Smaller arrays travel inside messages; 0 = all arrays do."""
    largest_bytes: int = Field(default=4 * 1024**3, ge=1)
    """Largest blob that is accepted."""
    max_bytes: int = Field(default=8 * 1024**3, ge=1)
    """Bytes of all blobs kept at once, and at most 80 % of their file system. Unread results are dropped to make room,
    oldest first; after that, a task that would exceed it is refused with a retry hint."""
    spare_bytes: int = Field(default=1024**3, ge=0)
    """Bytes of removed blobs' files in /dev/shm that are kept for reuse, for `lease_seconds`; 0 = none. They count
    towards no limit, and are removed as soon as blobs need the room."""
    writer_share: float = Field(default=0.5, gt=0, le=1)
    """With security: share of `max_bytes` for the actors of one node, and for the clients of one namespace."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """How long a blob is kept after its client stopped renewing it, if no unfinished task needs it."""
    retention_seconds: float = Field(default=600.0, gt=0)
    """How long arrays of an unread result are kept, and files that no task ever named."""


class StoreConfig(Config):
    """Where accepted tasks and outcomes are kept."""

    kind: Literal["memory", "sqlite", "postgresql"] = "sqlite"
    """sqlite: survives the process; answers wait for the commit. memory: lost with the process. postgresql: survives
    the machine, and several schedulers share it; the default when a url is given."""
    path: Path = Path("runs/scheduler.sqlite")
    """File of the sqlite store."""
    url: str = ""
    """Database of the postgresql store: postgresql://user@host:port/name, without a password; several hosts can be
    given."""
    password: SecretStr | None = None
    """Password of the database."""
    password_file: Path | None = None
    """File that holds the password of the database."""
    lease_seconds: float = Field(default=2.0, ge=0.5, le=60)
    """With postgresql: a leader that is silent for this long is replaced by a standby."""
    address: str = ""
    """With postgresql: host:port at which callers reach this scheduler; standbys redirect them there. Empty = the
    host's name and listen.port."""
    synchronous: Literal["full", "normal"] = "full"
    """full: survives power loss. normal: survives a crash of the process only, and is faster; in PostgreSQL this is
    synchronous_commit=off, and a crash of the database loses the last moments."""
    repair: bool = False
    """Start without the damaged or missing parts of the journal, and log the losses."""
    compact_records: int = Field(default=200_000, ge=1)
    """New records after which the journal is compacted; never fewer than twice the tasks it holds."""
    compact_bytes: int = Field(default=128 * 1024**2, ge=1)
    """Bytes of such records, because a few large ones fill a disk too."""

    @property
    def where(self) -> str:
        """The file or the database, for messages."""
        return self.url if self.kind == "postgresql" else str(self.path)

    @model_validator(mode="before")
    @classmethod
    def _a_url_is_of_postgresql(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("url") and "kind" not in values:
            return {**values, "kind": "postgresql"}
        return values

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.kind != "postgresql":
            given = [name for name in ("url", "password", "password_file", "address") if getattr(self, name)]
            if given:
                raise ValueError(f"{given[0]} is for kind=postgresql, and kind is {self.kind}")
            return self
        if not self.url:
            raise ValueError("kind=postgresql needs url: postgresql://user@host:port/name")
        check_url(self.url)
        if self.password is not None and self.password_file is not None:
            raise ValueError("password and password_file are both set; keep one")
        if self.repair:
            raise ValueError("repair is for sqlite; restore PostgreSQL from its own backup")
        return self


class SchedulerConfig(Config):
    """All settings of the scheduler."""

    listen: ListenConfig = ListenConfig(port=50051)
    metrics: MetricsConfig = MetricsConfig(port=9101)
    log: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    queue: QueueConfig = QueueConfig()
    retries: RetryConfig = RetryConfig()
    namespace: NamespaceConfig = NamespaceConfig()
    """Limits of every namespace that is not in `namespaces`."""
    namespaces: dict[str, NamespaceConfig] = Field(default={})
    """Limits of single namespaces, by name."""
    leases: LeaseConfig = LeaseConfig()
    strikes: StrikeConfig = StrikeConfig()
    dispatch: DispatchConfig = DispatchConfig()
    retention: RetentionConfig = RetentionConfig()
    attested_labels: dict[str, dict[str, str]] = Field(default={})
    """Labels by node that its actors get as "attested/<name>", whatever they claim; only with security."""
    fleet_kinds: tuple[str, ...] = Field(
        default=(
            "rollout",
            "evaluate",
            "match",
            "federated_fit",
            "federated_mask",
            "federated_evaluate",
            "mapek_monitor",
            "mapek_analyse",
            "mapek_plan",
            "mapek_execute",
        ),
        max_length=1_000,
    )
    """Kinds that callers confined to a namespace may not submit: those that the learner and MAPE-K loops send to every
    node."""
    store: StoreConfig = StoreConfig()
    blobs: BlobConfig = BlobConfig()

    @model_validator(mode="after")
    def _is_called_and_never_calls(self) -> Self:
        given = [name for name in ("token", "token_file") if getattr(self.security, name) is not None]
        if given:
            raise ValueError(
                f"security.{given[0]} is for callers, and a scheduler makes no calls: "
                "name the file with its callers' tokens in security.tokens"
            )
        return self
