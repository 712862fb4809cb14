"""The actions that a node's operator allows loops to take there. Without a file, only dry runs are allowed."""

import os
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from parlmesh.config import Config, load
from parlmesh.errors import PermissionDenied

VARIABLE = "PARLMESH_MAPEK_NODE"
"""Environment variable that names the YAML file with these settings."""


class NodeConfig(Config):
    """Settings of one node; the file belongs to its operator, and no task can change it."""

    state: Path | None = None
    """Folder for detector states and leases; null = parlmesh/mapek in the user's state folder."""
    allow: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Allowed targets by kind of action: units, process names, destinations; "*" = any."""
    processes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Command with which restart_process starts a process again, by name; none = its supervisor restarts it."""
    actions: dict[str, str] = Field(default_factory=dict)
    """Your own actions: kind = "module:attribute"."""

    def folder(self) -> Path:
        """The folder that holds the state."""
        if self.state is not None:
            return self.state
        base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
        return Path(base) / "parlmesh" / "mapek"

    def check(self, kind: str, target: str) -> None:
        """PermissionDenied unless the operator allows this kind on this target."""
        allowed = self.allow.get(kind, ())
        if "*" not in allowed and target not in allowed:
            listed = ", ".join(allowed) or "nothing"
            raise PermissionDenied(
                f"{kind} of {target!r} is not allowed on this node; its {VARIABLE} file allows {listed}",
                reason="ACTION_NOT_ALLOWED",
            )


def node_settings() -> NodeConfig:
    """The settings from the file named by the environment variable; each file is read once."""
    return _read(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _read(file: str) -> NodeConfig:
    return load(NodeConfig, file=Path(file) if file else None, prefix=VARIABLE)
