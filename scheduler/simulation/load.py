"""The events of the simulated world: submitters, operators and faults, all from one seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from ..core.actors.placement import ActorCommand
from ..core.task import ANYWHERE, Placement, Task
from .actors import KINDS, POISON, SimulatedActor

if TYPE_CHECKING:
    from .world import World


class Load:
    """Plans a whole schedule in advance, and reacts to what becomes of it."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng

    def plan(self) -> None:
        rng, options = self._rng, self._world.options
        for actor in self._world.actors:
            self._world.at(rng.uniform(0.0, 2.0), actor.try_connect)
            self._world.at(rng.uniform(0.0, 2.0), actor.heartbeat)
        submitters = rng.choice((("me",), ("me", "you", "they")))
        self._world.books.submitters.update(submitters)
        number = 0
        while number < options.tasks:
            size = min(rng.choice((1, 3, 10)), options.tasks - number)
            batch = self._batch(number, size, submitters)
            self._world.books.asked_for.update(spec["task_id"] for spec in batch)
            self._world.at(rng.uniform(0.0, options.fault_seconds * 0.7), self._submit, batch)
            number += size
        for _ in range(rng.randrange(options.faults + 1)):
            self._world.at(rng.uniform(0.0, options.fault_seconds), self._fault)
        self._world.at(options.fault_seconds, self._heal)

    def _batch(self, first: int, size: int, submitters: tuple[str, ...]) -> list[dict[str, Any]]:
        rng, options = self._rng, self._world.options
        batch: list[dict[str, Any]] = []
        names = [
            f"{POISON if rng.random() < options.poison_share else 'task'}-{first + offset}" for offset in range(size)
        ]
        for offset in range(size):
            placement = rng.choice(
                (
                    ANYWHERE,
                    ANYWHERE,
                    ANYWHERE,
                    Placement("", frozenset({("zone", "1")})),
                    Placement(self._world.actors[0].node_id),
                )
            )
            batch.append(
                {
                    "task_id": names[offset],
                    "kind": rng.choice(KINDS),
                    "body": b"x" * rng.randrange(3),
                    "priority": rng.randint(1, 5),
                    "placement": placement,
                    "submitter": rng.choice(submitters),
                    "dependencies": tuple(name for name in names[:offset] if rng.random() < 0.15),
                    "queue_timeout": rng.choice((None, None, None, 20.0)),
                    "max_attempts": rng.choice((0, 1)),
                }
            )
        return batch

    def _submit(self, batch: list[dict[str, Any]]) -> None:
        """Tries again with the same ids until an answer arrives; answers get lost too."""
        world = self._world
        core = world.reachable()
        if core is None:
            world.after(self._rng.uniform(0.1, 3.0), self._submit, batch)
            return
        if any(spec["task_id"] in self._world.books.announced for spec in batch):
            # Once forgotten, an id is new again: the guarantee ends with the retention.
            batch = [spec for spec in batch if spec["task_id"] in core.life.tasks]
        task_ids = core.submit([Task(**spec) for spec in batch], world.monotonic())
        answered: list[bool] = []

        def answer() -> None:
            answered.append(True)
            self._world.books.promise(task_ids)
            if task_ids and self._rng.random() < 0.2:
                self._world.after(1.0, self._cancel, self._rng.choice(task_ids))
            if self._rng.random() < 0.1:
                self._world.after(0.5, self._submit, batch)

        world.perform()
        world.after_commit(answer)
        self._world.after(5.0, self._submit_again, batch, answered)

    def _submit_again(self, batch: list[dict[str, Any]], answered: list[bool]) -> None:
        if not answered:
            self._submit(batch)

    def _cancel(self, task_id: str) -> None:
        core = self._world.reachable()
        if core is not None and task_id in core.life.tasks:
            core.cancel([task_id], self._world.monotonic())
            self._world.perform()

    def _fault(self) -> None:
        rng, world = self._rng, self._world
        actor = rng.choice(world.actors)
        choice = rng.randrange(11)
        if choice < 2:
            actor.crash()
        elif choice < 4:
            world.break_stream(actor)
        elif choice == 4:
            actor.freeze()
        elif choice == 5:
            if rng.random() < 0.5:
                world.crash(commit_first=True)
            else:
                world.crash_before_the_next_commit()
        elif choice == 6:
            world.stall(rng.uniform(0.5, 30.0))
        elif choice == 7:
            world.jump_wall_clock(rng.choice((-3600.0, 3600.0, -5.0)))
        elif choice == 8:
            self._command(actor, rng.choice(list(ActorCommand)))
        elif choice == 9:
            world.hang_disk(rng.uniform(1.0, 40.0), failing=rng.random() < 0.5)
        else:
            self._rebalance()

    def _rebalance(self) -> None:
        core = self._world.reachable()
        if core is not None:
            core.rebalance(self._world.monotonic())
            self._world.perform()

    def _command(self, actor: SimulatedActor, command: ActorCommand) -> None:
        core = self._world.reachable()
        if core is not None and actor.name in core.life.fleet.actors:
            core.command([actor.name], command, self._world.monotonic())
            self._world.forgo_leases(actor)
            self._world.perform()

    def _heal(self) -> None:
        """Faults end; from here everything accepted must come to its end."""
        self._world.stall(0.0)
        for actor in self._world.actors:
            actor.thaw()
        self._resume_all()

    def _resume_all(self) -> None:
        for actor in self._world.actors:
            self._command(actor, ActorCommand.RESUME)
        self._world.after(30.0, self._resume_all)
