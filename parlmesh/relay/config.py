"""What an operator may set for a relay."""

from typing import Literal

from pydantic import Field

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig
from parlmesh.security import SecurityConfig


class LimitsConfig(Config):
    """Bounds of one relay: every wait has a deadline, every shelf a size."""

    policy_bytes: int = Field(default=256 << 20, ge=1 << 10, le=1 << 34)
    """Largest policy that is handed on."""
    held_bytes: int = Field(default=1 << 30, ge=1 << 10, le=1 << 40)
    """Policies that are held, together; what was asked for the longest ago goes first, the last one stays."""
    fetches: int = Field(default=8, ge=1, le=64)
    """Policies that are fetched at once."""
    waiting_fetches: int = Field(default=64, ge=1, le=4096)
    """Policies that may wait to be fetched, those being fetched included; more are refused."""
    fetch_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Longest time for one policy to come from the learner."""
    check_seconds: float = Field(default=2.0, gt=0, le=60)
    """Between two looks at whether the learner serves, and the longest wait for its answer."""
    message_bytes: int = Field(default=8 << 20, ge=2 << 20, le=1 << 30)
    """Largest gRPC message taken from the learner; policies come in pieces of 1 MiB."""


class RelayConfig(Config):
    """A relay: asked by the actors of a site, asks the learner."""

    learner: str = "127.0.0.1:50052"
    """Address of the learner, or of a relay nearer to it, host:port."""
    policy_encoding: Literal["safetensors", "zstd", "delta"] = "safetensors"
    """How policies come from the learner: as they are, or the same in fewer bytes. Readers choose for themselves."""
    listen: ListenConfig = ListenConfig(port=50053)
    metrics: MetricsConfig = MetricsConfig(port=9100)
    log: LogConfig = LogConfig()
    security: SecurityConfig = SecurityConfig()
    limits: LimitsConfig = LimitsConfig()
