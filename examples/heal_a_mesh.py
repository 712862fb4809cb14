"""Monitor the nodes of a fleet and act on problems: one cycle of the MAPE-K loop, as a dry run.

python examples/heal_a_mesh.py
"""

import asyncio
import tempfile
from pathlib import Path

from parlmesh.client import PARLController
from parlmesh.mapek.config import MapekConfig
from parlmesh.mapek.knowledge import Knowledge
from parlmesh.mapek.loop import MapekLoop


async def main() -> None:
    async with PARLController() as controller:
        # Each actor simulates its own node; in a real fleet, every node has an actor with the plug-in.
        await controller.initialize(3, actor={"plugins": ["parlmesh.mapek.plugin:plugin"], "virtual_nodes": 1})
        with tempfile.TemporaryDirectory() as folder:
            config = MapekConfig(knowledge=Path(folder) / "mapek.sqlite", dry_run=True)
            with Knowledge(config.knowledge) as knowledge:
                report = await MapekLoop(controller, config, knowledge).cycle()
        for node in report.nodes:
            print(f"{node.node}: {node.health.value}")
        print(f"{len(report.nodes)} nodes were looked at")


if __name__ == "__main__":
    asyncio.run(main())
