"""Asks the scheduler which nodes are connected, and starts a round when there are enough."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable

from parlmesh.errors import FleetError
from parlmesh.federation.config import FederationConfig

from .connected_nodes import NodesFound
from .rules.events import Begin, Event
from .rules.phase import Phase
from .rules.rounds import Rounds
from .transient_failures import Obstacle

# How long a list of connected nodes may be used for another round.
NODES_SECONDS = 1.0
_SEEK_SECONDS = 0.1

ListNodes = Callable[[FederationConfig], Awaitable[NodesFound]]


class NodeSearch:
    """The search of one federation. It searches while `wanted`; a buffer also takes nodes that connect later."""

    def __init__(
        self, core: Rounds, list_nodes: ListNodes, obstacle: Obstacle, handle: Callable[[Event], None]
    ) -> None:
        self._core = core
        self._obstacle = obstacle
        self._handle = handle
        self.list_nodes = list_nodes
        self.wanted = asyncio.Event()
        self._found = NodesFound()
        self._good_until = 0.0

    async def run(self) -> None:
        """Starts a round as soon as enough nodes are connected."""
        config, core = self._core.config, self._core
        least = config.selection.min_nodes
        while True:
            try:
                async with asyncio.timeout(NODES_SECONDS if config.buffer_size else None):
                    await self.wanted.wait()
            except TimeoutError:
                if core.phase is not Phase.COLLECTING:
                    continue
            if time.monotonic() >= self._good_until or len(self._found.nodes) < least:
                if not await self.look():
                    await asyncio.sleep(_SEEK_SECONDS)
                    continue
                self._good_until = time.monotonic() + NODES_SECONDS
            if len(self._found.nodes) < least:
                text = f"{len(self._found.nodes)} of {least} nodes are connected"
                self._obstacle.pause("; ".join(filter(None, [text, self._found.sentence()])))
                await asyncio.sleep(_SEEK_SECONDS)
                continue
            self._obstacle.clear()
            self.wanted.clear()
            if core.phase is Phase.WAITING or core.may_ask(self._found.nodes):
                self._handle(Begin(self._found.nodes, secrets.token_hex(16), time.time()))

    async def look(self) -> bool:
        """Asks for the connected nodes; False when the scheduler does not answer."""
        try:
            self._found = await self.list_nodes(self._core.config)
        except FleetError as error:
            self._obstacle.pause(f"the scheduler does not say which nodes are connected: {error.message}")
            return False
        return True
