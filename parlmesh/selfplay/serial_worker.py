"""A worker in the current process, for when no other can be started or is wanted."""

import itertools
from collections.abc import Mapping
from typing import Any

from parlmesh.handlers import Context
from parlmesh.types import Array

from .collect_handler import CollectGames


class SerialWorker:
    """Runs the workers' handler in the caller's thread."""

    def __init__(self) -> None:
        self.paused = False
        self._handler = CollectGames()
        self._numbers = itertools.count(1)

    def collect(self, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, Array]]:
        """One batch: the handler's answer and the columns."""
        context = Context(task_id=f"serial-{next(self._numbers)}", attempt=1, actor_id="serial", slot=0)
        result = self._handler.run(dict(parameters), {}, context)
        return dict(result.parameters), result.tensors

    def reset(self) -> None:
        """Drops the games."""
        self._handler = CollectGames()
