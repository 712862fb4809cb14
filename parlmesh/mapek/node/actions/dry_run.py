"""Does nothing, and reports that."""

from collections.abc import Mapping
from typing import Any

from ..settings import NodeConfig
from .action import Done


class DryRun:
    """Always allowed."""

    kind = "dry_run"

    def target(self, parameters: Mapping[str, Any]) -> str:
        """Nothing is changed."""
        return ""

    async def do(self, parameters: Mapping[str, Any], settings: NodeConfig) -> Done:
        """Reports its parameters."""
        return Done(f"nothing was done; parameters {dict(parameters)}", {})

    async def undo(self, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """There is nothing to undo."""
        return "nothing was done"
