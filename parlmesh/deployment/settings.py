"""What `parlmesh deploy render` fills in; the same names, in camel case, are the values of the Helm chart."""

from typing import Literal

from pydantic import ConfigDict, Field

from parlmesh.config import Config

NAME = r"^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$"
HOST = r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,252}[A-Za-z0-9])?$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"


class DeploySettings(Config):
    """One fleet."""

    # Helm's schema has the help texts in it.
    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str = Field(default="parlmesh", pattern=NAME)
    """Name of the fleet: what its parts are called after, and the label `fleet` of its metrics."""
    namespace: str = Field(default="parlmesh", pattern=NAME)
    """Namespace of Kubernetes."""
    image: str = Field(default="parlmesh:0.1.0", min_length=1, max_length=512)
    """Image with the binaries, as deploy/Containerfile builds it."""
    scheduler_host: str = Field(default="scheduler.example", pattern=HOST)
    """Where others reach the scheduler, on machines of your own (systemd, Prometheus)."""
    learner_host: str = Field(default="learner.example", pattern=HOST)
    """Where others reach the learner, on machines of your own."""
    relay_host: str = Field(default="relay.example", pattern=HOST)
    """Where actors reach the relay of their site, on machines of your own."""
    actors: int = Field(default=2, ge=1, le=1000)
    """Actors at the start."""
    most_actors: int = Field(default=10, ge=1, le=1000)
    """Actors at most, where their number follows the queue; so many certificates are made."""
    learner_processes: int = Field(default=1, ge=1, le=1000)
    """Processes that share the learner's gradient steps, in a JobSet and a job of Slurm."""
    slots: int = Field(default=1, ge=1, le=256)
    """Tasks that one actor runs at once."""
    environment: str = Field(default="CartPole-v1", min_length=1, max_length=200)
    """World of the run that the learner starts with."""
    step_budget: int = Field(default=300_000, ge=1)
    """Steps after which the run ends."""
    goal_return: float = 475.0
    """Mean return at which the run has reached its goal."""
    scheduler_storage: str = Field(default="1Gi", pattern=QUANTITY)
    """Room for the scheduler's journal."""
    learner_storage: str = Field(default="5Gi", pattern=QUANTITY)
    """Room for runs, models and checkpoints."""
    scheduler_cpu: str = Field(default="500m", pattern=QUANTITY)
    """Cores that the scheduler asks for."""
    scheduler_memory: str = Field(default="512Mi", pattern=QUANTITY)
    """Memory of the scheduler, asked for and at most."""
    learner_cpu: str = Field(default="1", pattern=QUANTITY)
    """Cores that the learner asks for."""
    learner_memory: str = Field(default="2Gi", pattern=QUANTITY)
    """Memory of the learner, asked for and at most."""
    relay_cpu: str = Field(default="250m", pattern=QUANTITY)
    """Cores that the relay asks for."""
    relay_memory: str = Field(default="768Mi", pattern=QUANTITY)
    """Memory of the relay, asked for and at most."""
    actor_cpu: str = Field(default="500m", pattern=QUANTITY)
    """Cores that an actor asks for."""
    actor_memory: str = Field(default="512Mi", pattern=QUANTITY)
    """Memory of an actor, asked for and at most."""
    monitoring_namespace: str = Field(default="monitoring", pattern=NAME)
    """Namespace from which Prometheus may read the metrics."""
    runbooks_url: str = Field(default="https://docs.example/runbooks/", min_length=1, max_length=512)
    """Where your people find docs/runbooks.md; alerts link to its headings."""
    security: Literal["certificates", "none"] = "certificates"
    """certificates: TLS and identities, files of `parlmesh certs`. none: everyone who reaches the fleet may use it."""
    autoscaling: bool = False
    """Whether the number of actors follows the queue; needs an adapter that serves the external metric."""
    pod_monitor: bool = False
    """Whether to describe the pods to a Prometheus operator; needs its custom resources."""

    @property
    def secure(self) -> bool:
        """Whether the fleet has certificates."""
        return self.security == "certificates"


def camel(name: str) -> str:
    """`most_actors` as Helm's values have it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)
