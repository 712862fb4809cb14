"""The settings of the page. Opens nothing."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from parlmesh.addresses import is_loopback
from parlmesh.config import Config, LogConfig
from parlmesh.config.model import Port
from parlmesh.security import SecurityConfig

DEFAULT_PORT = 8700


class DashboardConfig(Config):
    """Which fleet is shown, where, and to whom."""

    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler; empty = there is none, as in a serial run."""
    learner: str = "127.0.0.1:50052"
    """Address of the learner; empty = there is none."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Beyond this machine it needs `tokens`, and TLS or `behind_proxy`."""
    port: Port = DEFAULT_PORT
    """Port to listen on; 0 takes a free one."""
    prefix: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*/?$")
    """Path in front of every page where a proxy passes it on, such as /fleet. One that cuts it off needs nothing."""
    tokens: Path | None = None
    """YAML list of {name, role, sha256} of those who may log in, the file that servers have: readers look, operators
    act. Left out, everyone on this machine is an operator."""
    certificate: Path | None = None
    """The page's certificate (PEM, the chain after it): https instead of http."""
    key: Path | None = None
    """Its private key (PEM)."""
    behind_proxy: bool = False
    """A proxy in front of the page speaks TLS, so that it may listen beyond this machine without."""
    read_only: bool = False
    """Nobody can change anything here."""
    logs: Path | None = None
    """Folder of a run, or of runs, whose logs/*.log are shown; left out = none are."""
    mapek: Path | None = None
    """Knowledge of a MAPE-K loop on this machine (its `knowledge` file), whose events are shown; left out = none."""
    history: Path | None = None
    """SQLite file that keeps the fleet's numbers of the last days; left out = they are forgotten at the end."""
    security: SecurityConfig = SecurityConfig()
    """How the page speaks to the fleet."""
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            given, wanting = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{given} is set without {wanting}")
        if is_loopback(self.host):
            return self
        if self.tokens is None:
            raise ValueError(f"host {self.host} is more than this machine: set tokens, so that people log in")
        if self.certificate is None and not self.behind_proxy:
            raise ValueError(
                f"host {self.host} is more than this machine: set certificate and key, or behind_proxy when a proxy"
                " speaks TLS; else tokens could be read on the way"
            )
        return self
