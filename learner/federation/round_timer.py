"""The deadlines of rounds: a round must close even if no node answers."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from . import metrics
from .node_search import NodeSearch
from .rules.events import Event, Tick
from .rules.phase import Phase, wait_seconds
from .rules.rounds import Rounds
from .transient_failures import Obstacle

if TYPE_CHECKING:
    from .masking.secure_sums import SecureSums


class RoundTimer:
    """The timer of one federation. Its clock is the federation's age, without the time when no learner ran."""

    def __init__(
        self, core: Rounds, search: NodeSearch, obstacle: Obstacle, handle: Callable[[Event], None], age: float
    ) -> None:
        self._core, self._search, self._obstacle, self._handle = core, search, obstacle, handle
        self._age, self._born = age, time.monotonic()
        self.sums: SecureSums | None = None
        """Tells whether a secure round still waits for nodes."""
        self.changed = asyncio.Event()
        """Set after every event, which may change the deadline."""

    def now(self) -> float:
        """Age of the federation in seconds."""
        return self._age + time.monotonic() - self._born

    async def run(self) -> None:
        """Tells the rounds when a wait has ended."""
        core = self._core
        while True:
            self.changed.clear()
            left = core.deadline - self.now()
            making = core.phase is Phase.UNMASKING and self.sums is not None and self.sums.making
            timed = wait_seconds(core.phase, core.config) is not None and not making
            if timed and left <= 0.0:
                if core.would_suffer and (self._obstacle.refusal or not await self._search.look()):
                    # Without a scheduler no node can answer, so this counts against none of them.
                    core.postpone(self.now())
                    continue
                before = core.history[-1].state if core.history else None
                self._handle(Tick())
                if core.history and before != core.history[-1].state:
                    metrics.ROUNDS.labels(core.history[-1].state.value).inc()
                continue
            try:
                async with asyncio.timeout(max(0.001, left) if timed else None):
                    await self.changed.wait()
            except TimeoutError:
                continue
