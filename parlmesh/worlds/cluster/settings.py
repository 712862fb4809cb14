"""Where a live cluster is, what of it may be touched, and how fast."""

from pathlib import Path

from pydantic import Field

from parlmesh.config import Config


class LiveConfig(Config):
    """The live cluster. Names of nodes and deployments are those of the world's `cluster`."""

    namespace: str = Field(min_length=1, max_length=63)
    """Where the deployments are."""
    allowed_namespaces: tuple[str, ...] = ()
    """Namespaces that may be written to; none = nothing may."""
    kubeconfig: Path | None = None
    """null = from inside the cluster, or ~/.kube/config."""
    context: str | None = None
    """Of the kubeconfig; null = its present one."""
    server: str = ""
    """Address of an API server that asks for no credentials, such as `kubectl proxy`."""
    prometheus: str = ""
    """Address of the Prometheus server."""
    latency_query: str = ""
    """PromQL: mean latency of a request in milliseconds, with the label `deployment`."""
    load_query: str = ""
    """PromQL: requests a second, with the label `deployment`."""
    users_at: dict[str, int] = Field(default_factory=dict)
    """The site of the world's distance_ms where a deployment's users gather; else the first."""
    dry_run: bool = True
    """Nothing is ever written."""
    writes_per_minute: int = Field(default=10, ge=1, le=10_000)
    """Calls that change something."""
    pods_per_minute: int = Field(default=5, ge=1, le=10_000)
    """Pods that may be started, stopped or moved: the blast radius."""
    kill_switch: Path | None = None
    """While this file exists nothing is written."""
    log: Path = Path("placement-writes.jsonl")
    """Every write, with the observation that caused it; also those that a dry run would have made."""
    settle_seconds: int = Field(default=60, ge=1, le=3600)
    """How long pods may take to be as wanted."""
