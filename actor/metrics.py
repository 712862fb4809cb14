"""Every metric of an actor process, shared by its actors."""

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

# Three buckets to a decade up to ten seconds: a percentile read from them is off by at most one bucket.
_RUN_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0),
)


class ActorMetrics:
    """The metrics of one registry; a process has one."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.tasks = Counter(
            "parlmesh_actor_tasks",
            "Attempts that ended, by kind and outcome (succeeded, or the failure's reason)",
            ["kind", "outcome"],
            registry=registry,
        )
        self.run_seconds = Histogram(
            "parlmesh_actor_run_seconds",
            "Time in handlers that take a slot, by kind",
            ["kind"],
            buckets=_RUN_BUCKETS,
            registry=registry,
        )
        self.abandoned = Counter(
            "parlmesh_actor_abandoned_handlers",
            "Handlers abandoned because they did not stop in time, by kind",
            ["kind"],
            registry=registry,
        )
        self.revoked = Counter(
            "parlmesh_actor_revoked_leases",
            "Leases that the scheduler took back before their result",
            registry=registry,
        )
        self.refused_results = Counter(
            "parlmesh_actor_refused_results",
            "Results dropped because their lease was no longer valid after a reconnection",
            registry=registry,
        )
        self.duplicate_assignments = Counter(
            "parlmesh_actor_duplicate_assignments", "Assignments of a lease that was already known", registry=registry
        )
        self.slots = Gauge("parlmesh_actor_slots", "Slots of this process", registry=registry)
        self.slots_busy = Gauge("parlmesh_actor_slots_busy", "Slots running an attempt", registry=registry)
        self.busy_seconds = Counter(
            "parlmesh_actor_busy_seconds", "Slot time spent in attempts that ended", registry=registry
        )
        self.idle_seconds = Counter(
            "parlmesh_actor_idle_seconds",
            "Slot time spent without an attempt, counted when one starts",
            registry=registry,
        )
        self.connected = Gauge("parlmesh_actor_connected_actors", "Actors with an open stream", registry=registry)
        self.reconnects = Counter(
            "parlmesh_actor_reconnects", "Streams that ended or failed, by peer", ["peer"], registry=registry
        )
        self.environment_steps = Counter(
            "parlmesh_actor_environment_steps", "Environment steps collected, not counting resets", registry=registry
        )
        self.episodes = Counter("parlmesh_actor_episodes", "Episodes that ended while collecting", registry=registry)
        self.collect_seconds = Counter(
            "parlmesh_actor_collect_seconds", "Time spent stepping environments and choosing actions", registry=registry
        )
        self.policy_wait_seconds = Counter(
            "parlmesh_actor_policy_wait_seconds", "Time a rollout waited for a policy version", registry=registry
        )
        self.receipt_wait_seconds = Counter(
            "parlmesh_actor_receipt_wait_seconds", "Time a rollout waited for receipts", registry=registry
        )
        self.idle_ratio = Gauge(
            "parlmesh_actor_idle_ratio",
            "Share of the last seconds in which rollouts waited for tasks, policies and receipts",
            registry=registry,
        )
        self.policy_version = Gauge("parlmesh_actor_policy_version", "Newest policy version held", registry=registry)
        self.policy_fetches = Counter(
            "parlmesh_actor_policy_fetches",
            "Policies requested, by result (fetched, not_modified, corrupt, refused, failed)",
            ["result"],
            registry=registry,
        )
        self.policy_bytes = Counter(
            "parlmesh_actor_policy_bytes", "Bytes of policies fetched, as encoded", registry=registry
        )
        self.relay_fetches = Counter(
            "parlmesh_actor_relay_fetches",
            "Policies requested from the relay, by result (fetched, corrupt, failed)",
            ["result"],
            registry=registry,
        )
        self.relay_left = Gauge(
            "parlmesh_actor_relay_left",
            "1 while the relay does not answer and policies come from the learner instead",
            registry=registry,
        )
        self.policy_decode_seconds = Counter(
            "parlmesh_actor_policy_decode_seconds", "Time spent decoding policies", registry=registry
        )
        self.uploads = Counter(
            "parlmesh_actor_uploads",
            "Trajectories with a receipt or abandoned, by result (accepted, or the reason)",
            ["result"],
            registry=registry,
        )
        self.upload_bytes = Counter(
            "parlmesh_actor_upload_bytes", "Bytes of trajectories sent, including those sent again", registry=registry
        )
        self.shared_uploads = Counter(
            "parlmesh_actor_shared_uploads",
            "Trajectories handed over in shared memory, because the learner is on this host",
            registry=registry,
        )
        self.resent_uploads = Counter(
            "parlmesh_actor_resent_uploads", "Trajectories sent again after a broken stream", registry=registry
        )
