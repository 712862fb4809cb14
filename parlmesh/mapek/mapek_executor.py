"""The loop for programs: one controller, one call per cycle."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from parlmesh.client import PARLController
from parlmesh.errors import FailedPrecondition

from .config import DEFAULTS, MapekConfig
from .knowledge import Knowledge
from .loop import MapekLoop
from .types import CycleReport


class PARLMAPEKExecutor:
    """Runs cycles on a controller's fleet, whose actors need the plug-in mapek. Use it with `async with`.

    async with PARLController("scheduler:50051") as controller, PARLMAPEKExecutor(controller, config) as executor:
        report = await executor.execute_mapek_cycle(["node-1", "node-2"])
    """

    def __init__(self, controller: PARLController, config: MapekConfig | None = None) -> None:
        self._controller = controller
        self._config = config
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._knowledge: Knowledge | None = None
        self._loops: dict[tuple[str, ...], MapekLoop] = {}

    async def execute_mapek_cycle(self, mesh_nodes: Sequence[str] = ()) -> CycleReport:
        """Runs one cycle over these nodes, or over those of the configuration, and saves its decisions."""
        if self._knowledge is None or self._config is None:
            raise FailedPrecondition("enter the executor first: async with PARLMAPEKExecutor(controller) as executor")
        nodes = tuple(mesh_nodes)
        if nodes not in self._loops:
            config = self._config.model_copy(update={"nodes": nodes}) if nodes else self._config
            self._loops[nodes] = MapekLoop(self._controller, config, self._knowledge)
        return await self._loops[nodes].cycle()

    async def __aenter__(self) -> Self:
        if self._config is None:
            # Without a configuration, the knowledge is temporary.
            from parlmesh.config import load

            self._temporary = tempfile.TemporaryDirectory()
            path = Path(self._temporary.name) / "mapek.sqlite"
            self._config = load(MapekConfig, file=DEFAULTS, prefix="PARLMESH_MAPEK").model_copy(
                update={"knowledge": path}
            )
        self._knowledge = Knowledge(self._config.knowledge)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._knowledge is not None:
            self._knowledge.__exit__()
        if self._temporary is not None:
            self._temporary.cleanup()
