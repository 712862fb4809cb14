"""The base model of every configuration, and the sections that all services share. Reads no file."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MEBIBYTE = 1024 * 1024

Port = Annotated[int, Field(ge=0, le=65535)]


class Config(BaseModel):
    """A section of configuration: frozen, and unknown keys are refused. The string below a field is its help text."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )


class ListenConfig(Config):
    """Where a server listens and how it stops."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 is every interface."""
    port: Port = 0
    """Port to listen on; 0 takes a free one."""
    max_message_bytes: int = Field(default=8 * MEBIBYTE, ge=1024, le=1024 * MEBIBYTE)
    """Largest message accepted or sent."""
    drain_seconds: float = Field(default=5.0, ge=0.0, le=3600.0)
    """How long calls in flight may continue after the server is told to stop."""


class MetricsConfig(Config):
    """The address at which Prometheus scrapes this process."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address of the metrics page."""
    port: Port | None = None
    """Port of the metrics page; null turns it off, 0 takes a free one."""
    insecure: bool = False
    """Serve the page beyond this machine, to every host that can reach it."""


class LogConfig(Config):
    """The logging to stderr."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    format: Literal["json", "pretty"] = "json"
    """One JSON object per line, or readable text."""
