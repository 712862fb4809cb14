"""Settings of `parlmesh deploy render`; the same names in camel case are the values of the Helm chart."""

from typing import Literal

from pydantic import ConfigDict, Field

from parlmesh.config import Config

NAME = r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$"
HOST = r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"


class DeploySettings(Config):
    """Settings of one fleet."""

    # Helm's schema contains the help texts.
    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str = Field(default="parlmesh", pattern=NAME)
    """Name of the fleet: the prefix of its parts' names, and the label `fleet` of its metrics."""
    namespace: str = Field(default="parlmesh", pattern=NAME)
    """Kubernetes namespace."""
    image: str = Field(default="parlmesh:0.1.0", min_length=1, max_length=512)
    """Image with the binaries, as deploy/Containerfile builds it."""
    scheduler_host: str = Field(default="scheduler.example", pattern=HOST)
    """Address of the scheduler on your own machines (systemd, Prometheus)."""
    learner_host: str = Field(default="learner.example", pattern=HOST)
    """Address of the learner on your own machines."""
    relay_host: str = Field(default="relay.example", pattern=HOST)
    """Address of the relay for actors of its site, on your own machines."""
    actors: int = Field(default=2, ge=1, le=1000)
    """Number of actors at the start."""
    most_actors: int = Field(default=10, ge=1, le=1000)
    """Most actors when their number follows the queue; also the number of actor certificates."""
    learner_processes: int = Field(default=1, ge=1, le=1000)
    """Processes that share the learner's gradient steps, in a JobSet or a Slurm job."""
    slots: int = Field(default=1, ge=1, le=256)
    """Tasks that one actor runs at once."""
    environment: str = Field(default="CartPole-v1", min_length=1, max_length=200)
    """Environment of the learner's first run."""
    step_budget: int = Field(default=300_000, ge=1)
    """Steps after which the run ends."""
    goal_return: float = 475.0
    """Mean return at which the run has reached its goal."""
    scheduler_storage: str = Field(default="1Gi", pattern=QUANTITY)
    """Storage for the scheduler's journal."""
    learner_storage: str = Field(default="5Gi", pattern=QUANTITY)
    """Storage for runs, models and checkpoints."""
    scheduler_cpu: str = Field(default="500m", pattern=QUANTITY)
    """Cores requested by the scheduler."""
    scheduler_memory: str = Field(default="512Mi", pattern=QUANTITY)
    """Memory request and limit of the scheduler."""
    learner_cpu: str = Field(default="1", pattern=QUANTITY)
    """Cores requested by the learner."""
    learner_memory: str = Field(default="2Gi", pattern=QUANTITY)
    """Memory request and limit of the learner."""
    relay_cpu: str = Field(default="250m", pattern=QUANTITY)
    """Cores requested by the relay."""
    relay_memory: str = Field(default="768Mi", pattern=QUANTITY)
    """Memory request and limit of the relay."""
    actor_cpu: str = Field(default="500m", pattern=QUANTITY)
    """Cores requested by an actor."""
    actor_memory: str = Field(default="512Mi", pattern=QUANTITY)
    """Memory request and limit of an actor."""
    monitoring_namespace: str = Field(default="monitoring", pattern=NAME)
    """Namespace from which Prometheus may read the metrics."""
    runbooks_url: str = Field(default="https://docs.example/runbooks/", min_length=1, max_length=512)
    """Where your operators find docs/runbooks.md; alerts link to its headings."""
    security: Literal["certificates", "none"] = "certificates"
    """certificates: TLS and identities, files of `parlmesh certs`. none: every host that reaches the fleet may use it.
    """
    autoscaling: bool = False
    """Whether the number of actors follows the queue; needs an adapter that serves the external metric."""
    pod_monitor: bool = False
    """Whether to make a PodMonitor for the Prometheus operator; needs its custom resources."""

    @property
    def secure(self) -> bool:
        """Whether the fleet has certificates."""
        return self.security == "certificates"


def camel(name: str) -> str:
    """A name in camel case, as in Helm's values."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
