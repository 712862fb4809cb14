"""What a node's operator lets loops do there. Without a file nothing real is allowed, only dry runs."""

import os
from functools import lru_cache
from pathlib import Path

from pydantic import Field

from parlmesh.config import Config, load
from parlmesh.errors import PermissionDenied

VARIABLE = "PARLMESH_MAPEK_NODE"
"""Names the YAML file of these settings."""


class NodeConfig(Config):
    """Of one node; the file belongs to its operator and no task can change it."""

    state: Path | None = None
    """Folder of detectors' states and leases; null = parlmesh/mapek in the user's state folder."""
    allow: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By kind of action the targets it may touch: units, process names, destinations; "*" = any."""
    processes: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """How restart_process starts what it ended, by name; none = whatever supervises it does."""
    actions: dict[str, str] = Field(default_factory=dict)
    """Actions of one's own: kind = "module:attribute"."""

    def folder(self) -> Path:
        """Where the state lies."""
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
    """From the file that the environment names; read once for each file."""
    return _read(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=8)
def _read(file: str) -> NodeConfig:
    return load(NodeConfig, file=Path(file) if file else None, prefix=VARIABLE)
