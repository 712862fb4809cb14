"""The scheduler's core: a state machine without I/O, clock, threads or messages.

Each method is one event. It changes the state, or raises a FleetError and changes nothing; side effects are collected
for `take_actions`. `now` is the scheduler's own monotonic clock: no other clock decides.
"""

import os
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Never

from parlmesh import limits
from parlmesh.errors import InvalidInput, NotFound

from ..config import SchedulerConfig
from ..journal.compaction import Compactor
from ..journal.recovery import Recovery
from ..journal.skipped_records import UnreadableRecords
from .actions import Action, Assign, Command, NodeRecord, Notify, Persist, Revoke
from .actors.actor_sessions import Hello, Sessions
from .actors.placement import Actor, ActorCommand
from .actors.rebalancing import rebalance
from .lifecycle import Lifecycle
from .queue import submission_limits
from .task import AttemptEnd, Failure, LeaseLike, Task, TaskState

TRIM_SECONDS = 10.0
# Most tasks that one event ends for one cause, at about 10 µs each; later events end the rest.
MOST_ENDED_AT_ONCE = 5000
# Parts per actor into which many ready tasks are divided.
PARTS = 4


class Core:
    """Submit, lease, renew, complete, fail, cancel, expire, connect, lose, pause, drain, tick."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        now: float,
        wall_time: float,
        lease_floor: int = 0,
        rng: random.Random | None = None,
    ) -> None:
        """`rng` spreads load and back-offs; if given, it also replaces the entropy of lease ids."""
        self.config = config
        entropy = os.urandom if rng is None else rng.randbytes
        self.life = Lifecycle(config, rng or random.Random(), now, wall_time, lease_floor, entropy)  # noqa: S311
        self.sessions = Sessions(self.life)
        # Ended tasks that have not been announced yet; they must not be forgotten before that.
        self._unannounced = 0
        self.begin_term(now, wall_time, lease_floor)

    def begin_term(self, now: float, wall_time: float, lease_floor: int) -> None:
        """Starts to lead; the tables may have been filled before."""
        life = self.life
        life.wall_offset, life.last_lease, life.statistics.start = wall_time - now, lease_floor, now
        # The floor differs at every start, so ids never repeat.
        self._id_prefix = f"t-{lease_floor >> 32:x}"
        self._ids = count(1)
        self._last_tick = self._last_dispatch = now
        self._next_trim = now + TRIM_SECONDS
        self._next_rebalance = now + self.config.dispatch.rebalance_seconds

    def recover(self, batches: Iterable[bytes], now: float, warm: Compactor | None = None) -> UnreadableRecords:
        """Rebuilds the state from a journal, before any other event, and returns the unreadable records.

        `warm` has read the records before the batches.
        """
        recovery = Recovery(self.life, now)
        unreadable = recovery.recover(batches, warm)
        self.restore(recovery.node_records, now)
        return unreadable

    def restore(self, records: Iterable[NodeRecord], now: float) -> None:
        """Restores the strikes and quarantines of nodes from a journal."""
        for record in records:
            self.sessions.quarantine.restore(record, now)

    def submit(
        self, tasks: Sequence[Task], now: float, owner: str = "", payload_bytes: Callable[[bytes], int] = len
    ) -> list[str]:
        """Accepts every task or none; returns the ids in order. Tasks without an id get one, known ids change nothing.

        New tasks count against the allowance of `owner`, if given. `payload_bytes` measures the payload in a body.
        """
        life = self.life
        submission_limits.check_size(len(tasks))
        for task in tasks:
            if not task.task_id:
                task.task_id = self._new_id()
        new = submission_limits.select_new(tasks, life.tasks, self.config.queue, payload_bytes)
        submission_limits.check_room(new, life.statistics, now, self.config.queue)
        submission_limits.check_kinds(new, life.roster.kinds, life.fleet, self.config.queue)
        if owner and new:
            life.allowances.check(owner, list(new.values()), now)
            life.allowances.take(owner, list(new.values()), now)
        life.admit(new.values(), now)
        self._dispatch(now)
        return [task.task_id for task in tasks]

    def cancel(self, task_ids: Sequence[str], now: float) -> list[str]:
        """Ends the unfinished tasks and returns their ids. One unknown id refuses the whole request."""
        limits.TASK_IDS.check(len(task_ids), "the request")
        tasks = [self.task(task_id) for task_id in dict.fromkeys(task_ids)]
        cancelled = []
        for task in tasks:
            if not task.final:
                if task.actor is not None:
                    self.life.revoke(task.actor, task.lease)
                    self.sessions.unsettled[task.actor] = None
                self.life.finish(task, TaskState.CANCELLED, now, Failure("CANCELLED", "cancelled on request"))
                cancelled.append(task.task_id)
        self._dispatch(now)
        return cancelled

    def connect(self, hello: Hello, now: float) -> None:
        """Opens a stream of an actor, which keeps the leases that it names and still holds."""
        self.life.decided.said += self.sessions.connect(hello, now)
        self._resize_shares()
        self._dispatch(now)

    def disconnect(self, session: int, now: float) -> None:
        """Ends a stream. Its leases wait for the actor to come back, unless it left in peace."""
        self.sessions.disconnect(session, now)
        self._resize_shares()
        self._dispatch(now)

    def report(
        self,
        session: int,
        now: float,
        *,
        credits: int = 0,
        results: Sequence[AttemptEnd] = (),
        heartbeat: Iterable[LeaseLike] | None = None,
        slotless: Collection[int] = (),
        policy_version: int = 0,
        leaving: bool = False,
    ) -> None:
        """Takes one message of an actor. Every result in it is recorded or refused for good, so it may be acknowledged
        once the records from `take_actions` are durable. `slotless`: leases of the heartbeat that run in no slot."""
        actor = self.sessions.by_number.get(session)
        if actor is None:
            return
        if results:
            for reason in self.life.end_attempts(actor, results, now):
                self.sessions.quarantine.strike(actor.node_id, reason, now)
        if actor.session != session:
            # A stream that was replaced: its results count, its credits do not.
            self.sessions.unsettled[actor] = None
            self._dispatch(now)
            return
        self.sessions.hear(actor, now, credits=credits, leaving=leaving)
        if heartbeat is not None:
            self.sessions.leases.renew(actor, heartbeat, slotless, now)
            self.sessions.see_policy(actor, policy_version, now)
        self._fill(actor, now)
        self._dispatch(now)

    def standing(self, session: int, tasks: Sequence[Task], lease_ids: Sequence[int]) -> list[Task]:
        """Returns the tasks of an assignment whose leases are still valid when it is sent. Returns the stream's credits
        for the others, because they are not sent to the actor."""
        actor = self.sessions.by_number.get(session)
        if actor is None or actor.session != session:
            return []
        found = [
            task
            for task, lease_id in zip(tasks, lease_ids)  # noqa: B905 - same length, hot path
            if task.lease_id == lease_id and task.actor is actor
        ]
        if len(found) < len(tasks):
            actor.credits += len(tasks) - len(found)
            self.sessions.unsettled[actor] = None
        return found

    def begin(self, session: int, tasks: Sequence[Task], lease_ids: Sequence[int], now: float) -> None:
        """Starts the leases of an assignment that waited for its commit and is sent now. However long the store took,
        the actor has their full time."""
        actor = self.sessions.by_number.get(session)
        if actor is None or actor.session != session:
            return
        for task, lease_id in zip(tasks, lease_ids, strict=True):
            if task.lease_id == lease_id and task.actor is actor:
                task.expires_at = now + self.config.leases.duration_seconds
                # Moved behind leases that were sent in the meantime: the actor starts those first.
                actor.leases[lease_id] = actor.leases.pop(lease_id)

    def announced(self, count: int) -> None:
        """Counts tasks of a Notify that were announced and may now be forgotten when due."""
        self._unannounced -= count

    def strike(self, session: int, reason: str, now: float) -> None:
        """Strikes the node of an actor whose message was refused."""
        actor = self.sessions.by_number.get(session)
        if actor is not None:
            self.sessions.quarantine.strike(actor.node_id, reason, now)
            self._dispatch(now)

    def judge(
        self, actor_ids: Sequence[str], node_ids: Sequence[str], command: ActorCommand, reason: str, now: float
    ) -> list[Actor]:
        """Quarantines or strikes these nodes and the nodes of these actors; returns all their actors."""
        if not reason:
            raise InvalidInput(f"{command.name} needs a reason, which the list of actors shows", reason="NO_REASON")
        reason = limits.REASON.shorten(reason)
        roster = self.life.roster
        for node_id in node_ids:
            limits.NODE_ID.check_text(node_id)
        named = roster.named(actor_ids, len(node_ids))
        nodes = dict.fromkeys((*node_ids, *(actor.node_id for actor in named)))
        quarantine = self.sessions.quarantine
        for node_id in nodes:
            if command is ActorCommand.STRIKE:
                quarantine.strike(node_id, reason, now)
            else:
                quarantine.quarantine(node_id, reason, now)
        self._dispatch(now)
        return roster.of_nodes(nodes)

    def command(
        self, actor_ids: Sequence[str], command: ActorCommand, now: float, node_ids: Sequence[str] = ()
    ) -> list[Actor]:
        """Commands every named actor and all actors of the named nodes, or none; returns them."""
        roster = self.life.roster
        actors = roster.named(actor_ids, len(node_ids))
        if node_ids:
            roster.check_nodes(node_ids)
            actors = list(dict.fromkeys((*actors, *roster.of_nodes(node_ids))))
        for actor in actors:
            self.sessions.command(actor, command, now)
            if actor.session:
                self.life.decided.said.append(Command(actor.session, command))
        self._dispatch(now)
        return actors

    def rebalance(self, now: float) -> int:
        """Moves tasks that have not started away from slow, full, paused or leaving actors; returns how many moved."""
        moved = rebalance(self.life, self.sessions.unsettled, now, 0.0)
        self._dispatch(now)
        return moved

    def tick(self, now: float, wall_time: float) -> None:
        """Lets time pass: back-offs end, leases expire, old tasks are forgotten."""
        life = self.life
        life.wall_offset = wall_time - now
        self.sessions.leases.forgive_stall(now - self._last_tick, now)
        self._last_tick = now
        for task in life.timers.take_due(now, MOST_ENDED_AT_ONCE):
            self._wake(task, now)
        self.sessions.expire(now)
        self.sessions.follow_policy(now)
        self._foresee(now)
        # Nothing is forgotten while children of failed parents wait to be ended: their parents must remain known.
        gone = [] if life.doomed else life.retention.excess(now, self._unannounced + len(life.decided.finished))
        if gone:
            life.forget(gone)
        if now >= self._next_trim:
            self._next_trim = now + TRIM_SECONDS
            for task_class in life.queue.trim():
                life.fleet.drop_class(task_class)
                task_class.dissolve()
            life.roster.forget_kinds(now)
        if now >= self._next_rebalance:
            self._next_rebalance = now + self.config.dispatch.rebalance_seconds
            rebalance(life, self.sessions.unsettled, now, self.config.dispatch.rebalance_seconds)
        self._dispatch(now)

    @property
    def next_ending(self) -> float:
        """When `foresee` is due; infinite when nothing is expected."""
        return self.life.endings.next_time

    def foresee(self, now: float) -> None:
        """Gives actors whose tasks are about to end the next ones, so that no slot waits for a round trip."""
        self._foresee(now)
        self._dispatch(now)

    @property
    def undelivered(self) -> bool:
        """Whether something was decided that `take_actions` has not returned."""
        return self.life.decided.for_journal or bool(self.life.decided.said)

    def take_actions(self) -> list[Action]:
        """Returns the last event's actions, in the order to perform them; call it after every event."""
        decided = self.life.decided
        actions: list[Action] = []
        if decided.for_journal:
            actions.append(
                Persist(
                    self._last_dispatch + self.life.journal_offset,
                    decided.submitted,
                    decided.returned,
                    decided.finished,
                    decided.leased,
                    decided.forgotten,
                    decided.pauses,
                    decided.actors,
                    decided.kinds,
                )
            )
        actions += decided.said
        actions += [Revoke(session, leases) for session, leases in decided.revoked.items()]
        actions += [Assign(actor.session, tasks) for actor, tasks in decided.assigned.items()]
        actions += [Assign(actor.session, tasks, True) for actor, tasks in decided.assigned_again.items()]
        if decided.finished:
            self._unannounced += len(decided.finished)
            actions.append(Notify(decided.finished))
        decided.clear()
        return actions

    def task(self, task_id: str) -> Task:
        task = self.life.tasks.get(task_id)
        return task if task is not None else self.refuse_unknown(task_id)

    def refuse_unknown(self, task_id: str) -> Never:
        raise NotFound(
            f'task "{limits.TASK_ID.shorten(task_id)}" is unknown or was finished too long ago',
            reason="UNKNOWN_TASK",
            task_id=task_id,
        )

    def _resize_shares(self) -> None:
        """Adapts the shares to the fleet's slots, which the event may have changed."""
        self.life.fresh.update(dict.fromkeys(self.life.queue.resize(self.life.fleet.slots)))

    def _new_id(self) -> str:
        while True:
            task_id = f"{self._id_prefix}-{next(self._ids)}"
            if task_id not in self.life.tasks:
                return task_id

    def _wake(self, task: Task, now: float) -> None:
        if task.state is TaskState.WAITING:
            self.life.make_ready([task], now)
        elif task.actor is not None:
            task.actor.late.add(task.lease_id)
        else:
            self.life.give_up_waiting(task, now)

    def _dispatch(self, now: float) -> None:
        """Runs after every event: pairs ready tasks with actors that have room until no pair is left."""
        self._last_dispatch = now
        if self.life.doomed:
            self.life.end_doomed(now, MOST_ENDED_AT_ONCE)
        fleet, unsettled = self.life.fleet, self.sessions.unsettled
        changed = [actor for actor in unsettled if actor.profile is not None]
        unsettled.clear()
        for actor in changed:
            fleet.settle(actor)
        if self.life.fresh:
            self._spread(now)
        # Last, so that a task taken from an actor goes to a free slot and not back to it.
        for actor in changed:
            self._fill(actor, now)

    def _fill(self, actor: Actor, now: float) -> None:
        """Gives an actor the tasks it has room for."""
        life = self.life
        if life.queue.ready and (room := actor.room) > 0:
            tasks = life.queue.take(actor.classes, room)
            if tasks:
                life.grant(tasks, actor, now)
        life.fleet.settle(actor)

    def _spread(self, now: float) -> None:
        """Gives tasks that became ready to actors with room."""
        life = self.life
        for task_class in life.fresh:
            while task_class.ready:
                actor = life.fleet.choose(task_class)
                if actor is None:
                    break
                # A few tasks are spread one by one; if there are many, each actor gets several at once. Free slots come
                # first.
                free = actor.slots - len(actor.leases)
                part = 1 + task_class.ready // (PARTS * len(self.sessions.by_number))
                tasks = life.queue.take(actor.classes, min(part, actor.room, free if free > 0 else part))
                if not tasks:
                    # All tasks left belong to namespaces that hold their full share.
                    break
                life.grant(tasks, actor, now)
                life.fleet.settle(actor)
        life.fresh.clear()

    def _foresee(self, now: float) -> None:
        """Treats slots as free when their tasks are about to end."""
        for lease_id, actor in self.life.endings.take_due(now):
            if lease_id in actor.leases:
                actor.ending.add(lease_id)
                self.sessions.unsettled[actor] = None
