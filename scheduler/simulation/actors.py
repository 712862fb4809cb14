"""A simulated actor: slots, a local queue, results kept until acknowledged, and every way to go wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.actors.actor_sessions import Hello
from ..core.actors.placement import ActorCommand
from ..core.task import AttemptEnd, Failure, LeaseName

if TYPE_CHECKING:
    from .world import World

PREFETCH_CREDITS = 3
KINDS = ("noop", "echo", "shogi")
# Tasks whose ids have this prefix kill every actor that runs them.
POISON = "poison"


class SimulatedActor:
    """Lives through crashes, freezes and broken streams; keeps its own books."""

    def __init__(self, world: World, name: str, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.name = name
        self.node_id = f"node-{rng.randrange(3)}"
        self._equip()
        self.labels = (("zone", "1"),) if name == "actor-0" or rng.random() < 0.5 else ()
        self.slowness = rng.choice((0.1, 1.0, 1.0, 5.0))
        self.incarnation = 1
        self.alive = True
        self.frozen_until = 0.0
        self.session = 0
        # Lease id -> name: waiting and running attempts. A lease is removed when it ends or is revoked.
        self.held: dict[int, LeaseName] = {}
        self.running: set[int] = set()
        self.unacknowledged: dict[int, AttemptEnd] = {}
        self.draining = False

    def _equip(self) -> None:
        """The first actor can run everything anywhere, so that no task waits for ever once faults end."""
        rng = self._rng
        chosen = tuple(kind for kind in KINDS if rng.random() < 0.7) or KINDS[:1]
        self.kinds: tuple[str, ...] = KINDS if self.name == "actor-0" else chosen
        self.slots = rng.choice((1, 2, 4, 8))

    def try_connect(self) -> None:
        world = self._world
        if not self.alive or self.session:
            return
        hello = Hello(
            0,
            self.name,
            node_id=self.node_id,
            incarnation=self.incarnation,
            slots=self.slots,
            kinds=self.kinds,
            labels=self.labels,
            leases=tuple(self.held.values())
            + tuple(LeaseName(end[0], end[1], 0) for end in self.unacknowledged.values()),
        )
        if not world.connect(self, hello):
            world.after(self._rng.uniform(0.2, 2.0), self.try_connect)
            return
        credits = max(0, self.slots + PREFETCH_CREDITS - len(self.held))
        world.send_up(self, {"credits": credits, "results": tuple(self.unacknowledged.values())})

    def heartbeat(self) -> None:
        """Repeats forever; a frozen or dead actor skips its turn."""
        world = self._world
        world.after(world.heartbeat_seconds, self.heartbeat)
        if self.session and self.alive and not self._frozen():
            world.send_up(self, {"heartbeat": tuple(self.held.values())})

    def stream_broke(self) -> None:
        self.session = 0
        self._world.after(self._rng.uniform(0.0, 1.5), self.try_connect)

    def on_welcome(self, standing: list[LeaseName]) -> None:
        keep = {lease.lease_id for lease in standing}
        fallen = [lease_id for lease_id in self.held if lease_id not in keep]
        for lease_id in fallen:
            self._drop(lease_id)
        if fallen:
            # It gave no credit for them when it connected.
            self._world.send_up(self, {"credits": len(fallen)})
        self._start_more()
        self._leave_when_done()

    def on_assign(self, leases: Sequence[LeaseName]) -> None:
        for lease in leases:
            self.held[lease.lease_id] = lease
        self._start_more()

    def on_revoke(self, leases: list[LeaseName]) -> None:
        for lease in leases:
            if self._drop(lease.lease_id):
                self._world.send_up(self, {"credits": 1})
        self._start_more()
        self._leave_when_done()

    def on_acknowledge(self, lease_ids: list[int]) -> None:
        for lease_id in lease_ids:
            self.unacknowledged.pop(lease_id, None)

    def on_command(self, command: ActorCommand) -> None:
        if command is ActorCommand.RESET:
            for lease_id in list(self.held):
                self._drop(lease_id)
                self._world.send_up(self, {"credits": 1})
            self._leave_when_done()
        elif command is ActorCommand.DRAIN:
            self.draining = True
            self._leave_when_done()

    def crash(self) -> None:
        """kill -9; comes back with the next incarnation."""
        if not self.alive:
            return
        self.alive = False
        self._forget_all()
        self._world.break_stream(self)
        self._world.after(self._rng.uniform(0.1, 8.0), self._restart)

    def freeze(self) -> None:
        """SIGSTOP for a while; what arrives waits."""
        self.frozen_until = self._world.now + self._rng.uniform(1.0, 25.0)

    def thaw(self) -> None:
        self.frozen_until = 0.0

    def _restart(self) -> None:
        self.alive = True
        self.incarnation += 1
        if self._rng.random() < 0.3:
            self._equip()
        self.draining = False
        self.frozen_until = 0.0
        self.try_connect()

    def _frozen(self) -> bool:
        return self._world.now < self.frozen_until

    def _forget_all(self) -> None:
        self.held.clear()
        self.running.clear()
        self.unacknowledged.clear()

    def _drop(self, lease_id: int) -> bool:
        self.running.discard(lease_id)
        return self.held.pop(lease_id, None) is not None

    def _start_more(self) -> None:
        for lease_id in list(self.held):
            if len(self.running) >= self.slots:
                return
            if lease_id not in self.running:
                self.running.add(lease_id)
                seconds = self._rng.expovariate(1.0) * self.slowness * self._world.options.mean_seconds
                self._world.after(seconds, self._end, lease_id, self.incarnation, seconds)

    def _end(self, lease_id: int, incarnation: int, seconds: float) -> None:
        if not self.alive or incarnation != self.incarnation or lease_id not in self.held:
            return
        if self._frozen():
            self._world.at(self.frozen_until, self._end, lease_id, incarnation, seconds)
            return
        lease = self.held[lease_id]
        if lease.task_id.startswith(POISON):
            self.crash()
            return
        self._drop(lease_id)
        end = self._attempt_end(lease, seconds)
        self.unacknowledged[lease_id] = end
        self._world.send_up(self, {"credits": 1, "results": (end,)})
        self._start_more()
        self._leave_when_done()

    def _attempt_end(self, lease: LeaseName, seconds: float) -> AttemptEnd:
        if self._rng.random() < self._world.options.failure_share:
            failure = Failure("HANDLER_ERROR", "it broke", retryable=self._rng.random() < 0.8)
            return lease.task_id, lease.lease_id, b"", failure, seconds
        return lease.task_id, lease.lease_id, f"{lease.task_id}:{lease.lease_id}".encode(), None, seconds

    def _leave_when_done(self) -> None:
        if self.draining and not self.held and self.session:
            self._world.send_up(self, {"leaving": True})
            self._world.after(0.1, self.crash)
