"""Restarts a systemd unit."""

import re
from collections.abc import Mapping
from typing import Any

from parlmesh.errors import FailedPrecondition, InvalidInput

from ..settings import NodeConfig
from .action import Done, command, text_of

_UNIT = re.compile(r"^[A-Za-z0-9:_.@\\-]+$")


class RestartUnit:
    """Parameters: unit."""

    kind = "restart_unit"

    def target(self, parameters: Mapping[str, Any]) -> str:
        """The unit."""
        unit = text_of(parameters, "unit", self.kind)
        if not _UNIT.match(unit):
            raise InvalidInput(f"unit of {self.kind} must be the name of a unit, got {unit!r}")
        return unit

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Restarts it; a unit that is not active afterwards is a failure."""
        unit = self.target(parameters)
        await command("systemctl", "restart", unit)
        await command("systemctl", "is-active", "--quiet", unit)
        return Done(f"{unit} was restarted and is active")

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """Not possible: a restart cannot be undone."""
        raise FailedPrecondition("a restart cannot be undone", reason="NO_UNDO")
