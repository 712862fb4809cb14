"""The scheduler's settings. Every default is meant for a fleet of up to a few thousand actors."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, model_validator

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig
from parlmesh.limits import LONGEST_RUN_SECONDS
from parlmesh.postgres.connection_settings import check_url
from parlmesh.security import SecurityConfig


class QueueConfig(Config):
    """What is accepted, and in which order it leaves."""

    max_tasks: int = Field(default=1_000_000, ge=1)
    """Unfinished tasks held at once; a request that would exceed it gets RESOURCE_EXHAUSTED with a retry hint."""
    max_bytes: int = Field(default=2 * 1024**3, ge=1)
    """Payload bytes of unfinished tasks held at once."""
    max_payload_bytes: int = Field(default=4 * 1024**2, ge=1)
    """Largest encoded payload of one task, and of one result."""
    max_dependencies: int = Field(default=10_000, ge=0)
    """Most dependencies of one task."""
    aging_seconds: float = Field(default=60.0, gt=0)
    """How much longer a task must wait to overtake the next higher priority."""
    refuse_unknown_kinds: bool = True
    """Refuse a kind that no actor has announced (see retention.kind_seconds), once any is known; when off, such tasks
    wait."""


class RetryConfig(Config):
    """What happens after an attempt failed."""

    max_attempts: int = Field(default=3, ge=1)
    """Attempts of a task that does not say otherwise."""
    first_delay_seconds: float = Field(default=0.1, ge=0)
    """Wait before the second attempt; doubles with each one after that."""
    longest_delay_seconds: float = Field(default=30.0, ge=0)
    """The doubling ends here."""
    quarantine_losses: int = Field(default=3, ge=1)
    """A task that lost this many actors is never given out again."""
    run_timeout_seconds: float = Field(default=3600.0, gt=0, le=LONGEST_RUN_SECONDS)
    """Longest run of one attempt of a task that does not say otherwise."""


class NamespaceConfig(Config):
    """What a caller that is confined to a namespace may ask for: the fleet is not its own."""

    max_priority: Literal["background", "low", "normal", "high", "critical"] = "high"
    """Highest priority of its tasks."""
    max_run_seconds: float = Field(default=86_400.0, gt=0, le=LONGEST_RUN_SECONDS)
    """Longest run_timeout of its tasks."""
    slots_share: float = Field(default=0.5, gt=0, le=1)
    """Share of all connected slots that its tasks hold at once, and at least one slot; others wait for its own."""


class LeaseConfig(Config):
    """How long an actor keeps what it was given."""

    heartbeat_seconds: float = Field(default=1.0, gt=0)
    """Interval at which actors say what they work on."""
    duration_seconds: float = Field(default=10.0, gt=0)
    """A lease not renewed for this long is given away."""
    reconnect_seconds: float = Field(default=3.0, ge=0)
    """After a broken stream, time for the same actor to come back for its leases."""

    @model_validator(mode="after")
    def _heartbeats_fit_into_a_lease(self) -> Self:
        if self.duration_seconds < 2 * self.heartbeat_seconds:
            raise ValueError(
                f"duration_seconds is {self.duration_seconds}; it must be at least twice heartbeat_seconds "
                f"({self.heartbeat_seconds}), or a single late heartbeat loses every lease"
            )
        return self


class StrikeConfig(Config):
    """When a node's answers are no longer wanted."""

    limit: int = Field(default=5, ge=0)
    """Bad answers within the window that put a node in quarantine; 0 = never."""
    window_seconds: float = Field(default=3600.0, gt=0)
    """How long a bad answer counts."""
    quarantine_seconds: float = Field(default=600.0, gt=0)
    """How long a quarantine lasts unless an operator ends it."""


class DispatchConfig(Config):
    """How tasks are spread."""

    prefetch_seconds: float = Field(default=0.02, ge=0)
    """Work an actor may hold beyond its slots, by the measured duration of its tasks; of longer tasks of even length it
    is given the next one this long before the end of the last."""
    rebalance_seconds: float = Field(default=0.5, gt=0)
    """Interval at which tasks that have not started move from full actors to idle ones."""
    tick_seconds: float = Field(default=0.05, gt=0, le=1)
    """Interval at which timeouts and back-offs are looked at."""
    awake_seconds: float = Field(default=0.0, ge=0, le=60)
    """How long this machine's cores are kept from sleeping after a task comes or ends: shorter round trips for power.
    0 = not at all; takes the right to write /dev/cpu_dma_latency."""


class RetentionConfig(Config):
    """How long what is over can still be asked for."""

    max_tasks: int = Field(default=100_000, ge=0)
    """Finished tasks kept."""
    max_seconds: float = Field(default=3600.0, ge=0)
    """How long a finished task is kept."""
    max_bytes: int = Field(default=256 * 1024**2, ge=0)
    """Payload and result bytes of finished tasks kept."""
    actor_seconds: float = Field(default=300.0, ge=0)
    """How long a lost actor is listed."""
    actors_per_node: int = Field(default=100, ge=0)
    """Lost actors of one node that are listed; of more the first to be lost are forgotten."""
    kind_seconds: float = Field(default=86_400.0, ge=0)
    """How long a kind is known after the last actor announced it."""
    trace_events: int = Field(default=100_000, ge=0)
    """Attempts that were followed by another, kept for GetTrace; the last ones come from the finished tasks."""


class BlobConfig(Config):
    """Large arrays beside tasks: files that processes of this host share. Nothing of them is in the store."""

    folder: Path | None = None
    """Where they are kept; unset = a folder of this scheduler's own in /dev/shm, or among the temporary files where
    that has less than 1 GiB. Only processes of the same user share it; others, and other hosts, are sent what they
    need."""
    least_bytes: int = Field(default=64 * 1024, ge=0)
    """Arrays of fewer bytes travel inside messages; 0 = all do."""
    largest_bytes: int = Field(default=4 * 1024**3, ge=1)
    """Largest blob that is taken."""
    max_bytes: int = Field(default=8 * 1024**3, ge=1)
    """Bytes of all blobs kept at once, and at most 80 % of their file system; a task that would exceed it is refused
    with a retry hint. Results that nobody has taken go before that, the oldest first."""
    spare_bytes: int = Field(default=1024**3, ge=0)
    """Bytes of files of removed blobs in /dev/shm that are kept to be written again, for `lease_seconds`; 0 = none.
    They count towards nobody's limit, and go as soon as blobs need the room."""
    writer_share: float = Field(default=0.5, gt=0, le=1)
    """With security: share of that for the actors of one node, and for the clients of one namespace."""
    lease_seconds: float = Field(default=60.0, gt=0)
    """How long a blob is kept that its client no longer asks for, and no unfinished task needs."""
    retention_seconds: float = Field(default=600.0, gt=0)
    """How long the arrays of a result are kept that nobody takes, and files that no task ever named."""


class StoreConfig(Config):
    """Where accepted tasks and outcomes are kept."""

    kind: Literal["memory", "sqlite", "postgresql"] = "sqlite"
    """sqlite: survives the process; answers wait for the commit. memory: lost with the process. postgresql: survives
    the machine, and several schedulers share it; meant when a url is given."""
    path: Path = Path("runs/scheduler.sqlite")
    """File of the sqlite store."""
    url: str = ""
    """Database of the postgresql store: postgresql://user@host:port/name, without a password; hosts may be several."""
    password: SecretStr | None = None
    """Password of the database."""
    password_file: Path | None = None
    """File that holds the password of the database."""
    lease_seconds: float = Field(default=2.0, ge=0.5, le=60)
    """With postgresql: a leader that was not heard of for so long is replaced by a scheduler that stands by."""
    address: str = ""
    """With postgresql: where callers reach this scheduler, host:port; told by those that stand by. Empty = the host's
    name and listen.port."""
    synchronous: Literal["full", "normal"] = "full"
    """full: survives power loss. normal: survives a crash of the process only, and is faster; in PostgreSQL this is
    synchronous_commit=off, and a crash of the database loses the last moments."""
    repair: bool = False
    """Start without what is damaged, or missing, in the journal, and say in the log what was left out."""
    compact_records: int = Field(default=200_000, ge=1)
    """Journal records after which the journal is compacted; at least twice what is alive."""
    compact_bytes: int = Field(default=128 * 1024**2, ge=1)
    """The same in bytes: few large records fill a disk as well."""

    @property
    def where(self) -> str:
        """For people: the file, or the database."""
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
            raise ValueError("repair is for sqlite; restore PostgreSQL from a backup of its own")
        return self


class SchedulerConfig(Config):
    """All of it."""

    listen: ListenConfig = ListenConfig(port=50051)
    metrics: MetricsConfig = MetricsConfig(port=9101)
    log: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    queue: QueueConfig = QueueConfig()
    retries: RetryConfig = RetryConfig()
    namespace: NamespaceConfig = NamespaceConfig()
    """Of all namespaces but those in `namespaces`."""
    namespaces: dict[str, NamespaceConfig] = Field(default={})
    """By the name of a namespace, what its callers may ask for instead."""
    leases: LeaseConfig = LeaseConfig()
    strikes: StrikeConfig = StrikeConfig()
    dispatch: DispatchConfig = DispatchConfig()
    retention: RetentionConfig = RetentionConfig()
    attested_labels: dict[str, dict[str, str]] = Field(default={})
    """By node: labels that its actors have whatever they claim, as "attested/<name>"; only with security."""
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
    """Kinds that identities confined to a namespace may not submit: what learner and loops ask of all nodes."""
    store: StoreConfig = StoreConfig()
    blobs: BlobConfig = BlobConfig()

    @model_validator(mode="after")
    def _is_called_and_never_calls(self) -> Self:
        given = [name for name in ("token", "token_file") if getattr(self.security, name) is not None]
        if given:
            raise ValueError(
                f"security.{given[0]} is for those who call, and a scheduler calls nobody: "
                "name the file of its callers' tokens in security.tokens"
            )
        return self
