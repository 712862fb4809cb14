"""The operator's settings for a relay."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig
from parlmesh.security import SecurityConfig


class LimitsConfig(Config):
    """Limits of one relay: every wait has a deadline, and the cache is bounded."""

    policy_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 34)
    """Largest policy to distribute."""
    held_bytes: int = Field(default=1 << 30, ge=1 << 10, le=1 << 40)
    """Total size of held policies; the least recently requested are removed first, and the last one is kept."""
    fetches: int = Field(default=8, ge=1, le=64)
    """Policies fetched at once."""
    waiting_fetches: int = Field(default=64, ge=1, le=4096)
    """Policies that may wait to be fetched, including those being fetched; further ones are refused."""
    fetch_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Time limit for fetching one policy from the learner."""
    check_seconds: float = Field(default=2.0, gt=0, le=60)
    """Time between checks of the learner's health, and the longest wait for its answer."""
    message_bytes: int = Field(default=8 << 20, ge=2 << 20, le=1 << 30)
    """Largest gRPC message accepted from the learner; policies come in pieces of 1 MiB."""


class RelayConfig(Config):
    """A relay: serves the actors of a site and fetches from the learner."""

    learner: str = "127.0.0.1:50052"
    """Address of the learner, or of a relay nearer to it, host:port."""
    policy_encoding: Literal["safetensors", "zstd", "delta"] = "safetensors"
    """How policies come from the learner: uncompressed, or losslessly in fewer bytes. Readers choose for themselves."""
    listen: ListenConfig = ListenConfig(port=50053)
    metrics: MetricsConfig = MetricsConfig(port=9100)
    log: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    limits: LimitsConfig = LimitsConfig()
