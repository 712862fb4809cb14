"""The settings of the page. Opens no file or port."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from parlmesh.addresses import is_loopback
from parlmesh.config import Config, LogConfig
from parlmesh.config.model import Port
from parlmesh.security import SecurityConfig

DEFAULT_PORT = 8700


class DashboardConfig(Config):
    """The fleet to show, the page's address, and its visitors."""

    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler; empty = none, as in a serial run."""
    learner: str = "127.0.0.1:50052"
    """Address of the learner; empty = none."""
    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Listening beyond this machine needs `tokens`, and TLS or `behind_proxy`."""
    port: Port = DEFAULT_PORT
    """Port to listen on; 0 takes a free one."""
    prefix: str = Field(default="", pattern=r"^(/[A-Za-z0-9._~-]+)*/?$")
    """Path prefix that a proxy forwards, such as /fleet. Leave it empty for a proxy that strips the prefix."""
    tokens: Path | None = None
    """YAML list of {name, role, sha256} of the visitors who may log in, the servers' tokens file: readers view,
    operators act. Without it, every visitor on this machine is an operator."""
    certificate: Path | None = None
    """The page's certificate (PEM, followed by its chain), for https instead of http."""
    key: Path | None = None
    """Its private key (PEM)."""
    behind_proxy: bool = False
    """A proxy in front of the page terminates TLS, so the page may listen beyond this machine without TLS."""
    read_only: bool = False
    """No visitor may change anything from the page."""
    logs: Path | None = None
    """Folder of a run or of runs whose logs/*.log to show; null = none."""
    mapek: Path | None = None
    """Knowledge file of a MAPE-K loop on this machine whose events to show; null = none."""
    history: Path | None = None
    """SQLite file that keeps the fleet's numbers of the last days; null = they are lost when the page stops."""
    security: SecurityConfig = SecurityConfig()
    """How the page connects to the fleet."""
    log: LogConfig = LogConfig()

    @model_validator(mode="after")
    def _safe(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            given, wanting = ("certificate", "key") if self.key is None else ("key", "certificate")
            raise ValueError(f"{given} is set without {wanting}")
        if is_loopback(self.host):
            return self
        if self.tokens is None:
            raise ValueError(f"host {self.host} is open to other machines: set tokens, so that people log in")
        if self.certificate is None and not self.behind_proxy:
            raise ValueError(
                f"host {self.host} is open to other machines: set certificate and key, or behind_proxy when a proxy"
                " speaks TLS; else tokens could be read on the way"
            )
        return self
