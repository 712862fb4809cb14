"""Actors' leases: which are renewed by heartbeats, which remain valid after a reconnect, and which end. Part of the
core: no I/O."""

from collections.abc import Collection, Iterable, Sequence

from parlmesh import limits

from ..lifecycle import Lifecycle
from ..task import NO_LEASE, NOT_BEGUN, Failure, LeaseLike, LeaseName, Task
from .node_quarantine import NodeQuarantine
from .placement import Actor
from .rebalancing import waiting

# Unknown leases of an actor that are answered within one heartbeat's interval: an honest actor has few, and each answer
# costs more than the rest of the message.
MAX_REVOKED = 100


class Leases:
    """Renews, reattaches and ends.

    `unsettled` takes the actors whose room has changed; `quarantine` counts run timeouts that an actor did not enforce.
    """

    def __init__(self, life: Lifecycle, unsettled: dict[Actor, None], quarantine: NodeQuarantine) -> None:
        self._life = life
        self._config = life.config.leases
        self._unsettled = unsettled
        self._quarantine = quarantine

    def renew(self, actor: Actor, leases: Iterable[LeaseLike], slotless: Collection[int], now: float) -> None:
        """Takes a heartbeat, which names the leases that the actor holds."""
        expires_at = now + self._config.duration_seconds
        held = actor.leases
        named = actor.named = set()
        if now >= actor.revocations_until:
            actor.revocations_until, actor.revocations = now + self._config.heartbeat_seconds, 0
        for lease in leases:
            lease_id = lease.lease_id
            task = held.get(lease_id)
            if task is not None:
                task.expires_at = expires_at
                named.add(lease_id)
            elif actor.revocations < MAX_REVOKED:
                # A name that is too long cannot be one of ours.
                if len(lease.task_id) <= limits.TASK_ID.most:
                    self._life.revoke(actor, LeaseName(lease.task_id, lease_id, lease.attempt))
                    actor.revocations += 1
            elif len(named) == len(held):
                # A later heartbeat gets the other answers.
                break
        named.difference_update(slotless)
        if actor.late:
            self._end_late(actor, now)

    def _end_late(self, actor: Actor, now: float) -> None:
        """Ends tasks that waited for a slot beyond their queue_timeout; those that may have begun go on."""
        for task in waiting(actor):
            if task.lease_id in actor.late:
                self._life.revoke(actor, task.lease)
                self._life.give_up_waiting(task, now)
                self._unsettled[actor] = None
        actor.late &= actor.leases.keys()

    def reattach(self, actor: Actor, leases: Sequence[LeaseName], now: float) -> list[LeaseName]:
        """Returns the leases that a newly connected actor named and that are still valid."""
        standing = []
        for lease in leases:
            task = self._life.tasks.get(lease.task_id)
            if task is None or task.final or task.lease_id != lease.lease_id or lease.lease_id == NO_LEASE:
                continue
            if task.actor is actor:
                task.expires_at = now + self._config.duration_seconds
            elif task.actor is None and actor.had(task):
                self._life.reclaim(task, actor, now)
            else:
                continue
            standing.append(task.lease)
        return standing

    def drop_others(self, actor: Actor, kept: set[int], restarted: bool, now: float) -> None:
        """Ends the leases that an actor that just connected did not keep."""
        for position, (lease_id, task) in enumerate(list(actor.leases.items())):
            # An actor that came back without a lease never got it; one that restarted lost it when it died.
            if lease_id not in kept:
                self._let_go(task, restarted and position < actor.slots, now)

    def expire(self, actor: Actor, now: float) -> None:
        """Ends leases of a connected actor that were not renewed or whose tasks ran for too long."""
        if not actor.silent and now > actor.last_seen + self._config.duration_seconds:
            actor.silent = True
            self._unsettled[actor] = None
        if now < actor.scan_at:
            return
        actor.scan_at = now + self._config.heartbeat_seconds
        overdue = 0
        for position, task in enumerate(list(actor.leases.values())):
            if task.expires_at <= now:
                self._life.revoke(actor, task.lease)
                self._let_go(task, position < actor.slots, now)
                self._unsettled[actor] = None
            elif position < actor.slots and task.expires_at != NOT_BEGUN:
                overdue += self._enforce_run_timeout(actor, task, now)
        # Only after the loop: a quarantine takes all leases of the node.
        for _ in range(min(overdue, self._life.config.strikes.limit)):
            self._quarantine.strike(actor.node_id, "it did not stop a task after its run_timeout", now)

    def give_away(self, actor: Actor, now: float) -> None:
        """Ends all leases of an actor that did not come back."""
        for position, task in enumerate(list(actor.leases.values())):
            self._let_go(task, position < actor.slots, now)

    def forgive_stall(self, gap: float, now: float) -> None:
        """Restarts every lease after the scheduler itself stood still: silence proves nothing then."""
        if gap < self._config.heartbeat_seconds + self._life.config.dispatch.tick_seconds:
            return
        expires_at = now + self._config.duration_seconds
        for actor in self._life.fleet.actors.values():
            actor.last_seen = now
            actor.lost_at = max(now, actor.lost_at + gap)
            # An actor restored from the journal may have been given more time.
            actor.kept_until = max(now + self._config.reconnect_seconds, actor.kept_until + gap)
            for task in actor.leases.values():
                task.expires_at = max(expires_at, task.expires_at)

    def _enforce_run_timeout(self, actor: Actor, task: Task, now: float) -> bool:
        """Ends a task that its actor should have stopped by now; returns whether it had to."""
        if not task.started_at:
            task.started_at = now
        limit = task.run_timeout or self._life.config.retries.run_timeout_seconds
        if now > task.started_at + limit + self._config.duration_seconds:
            self._life.revoke(actor, task.lease)
            message = f'actor "{actor.actor_id}" did not stop it after its run_timeout of {limit} s'
            self._life.fail_attempt(task, Failure("DEADLINE_EXCEEDED", message, retryable=True), now)
            self._unsettled[actor] = None
            return True
        return False

    def _let_go(self, task: Task, started: bool, now: float) -> None:
        """Ends a lease. The task is blamed for the loss only if it had started (the oldest leases, one per slot, are
        taken to be running) and the assignment had been sent to its actor."""
        if started and task.expires_at != NOT_BEGUN:
            self._life.lose(task, now)
        else:
            self._life.take_back(task, now)
