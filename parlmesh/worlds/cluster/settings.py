"""How to reach a live cluster, and the permitted changes and their rate."""

from pathlib import Path

from pydantic import Field

from parlmesh.config import Config


class LiveConfig(Config):
    """The live cluster. Nodes and deployments have the names in the world's `cluster`."""

    namespace: str = Field(min_length=1, max_length=63)
    """Namespace of the deployments."""
    allowed_namespaces: tuple[str, ...] = ()
    """Namespaces that may be written to; empty = none."""
    kubeconfig: Path | None = None
    """Kubeconfig file; null = the in-cluster configuration, or ~/.kube/config."""
    context: str | None = None
    """Context of the kubeconfig; null = the current one."""
    server: str = ""
    """Address of an API server that needs no credentials, such as `kubectl proxy`."""
    prometheus: str = ""
    """Address of the Prometheus server."""
    latency_query: str = ""
    """PromQL: mean request latency in milliseconds, with the label `deployment`."""
    load_query: str = ""
    """PromQL: requests per second, with the label `deployment`."""
    users_at: dict[str, int] = Field(default_factory=dict)
    """The row of the world's distance_ms where each deployment's users gather; default: the first."""
    dry_run: bool = True
    """Only log writes, never make them."""
    writes_per_minute: int = Field(default=10, ge=1, le=10_000)
    """Most writes per minute."""
    pods_per_minute: int = Field(default=5, ge=1, le=10_000)
    """Most pods started, stopped or moved per minute: the blast radius."""
    kill_switch: Path | None = None
    """While this file exists, nothing is written."""
    log: Path = Path("placement-writes.jsonl")
    """Log of every write with the observation that caused it, including writes a dry run would have made."""
    settle_seconds: int = Field(default=60, ge=1, le=3600)
    """Longest wait for pods to become ready after a write."""
