"""Actors' streams: who is connected, commanded, lost and forgotten. Part of the core: no I/O."""

from itertools import chain
from typing import NamedTuple

from parlmesh import limits
from parlmesh.errors import AlreadyExists, FailedPrecondition, InvalidInput

from ..actions import Action, Close, Command, Welcome
from ..lifecycle import Lifecycle
from ..queue import submission_limits
from ..task import LeaseName
from .leases import Leases
from .node_quarantine import NodeQuarantine
from .placement import UNTOLD_MESSAGE_BYTES, Actor, ActorCommand

# Labels with this prefix come from the operator or a certificate, never from the actor.
ATTESTED = "attested/"
MAX_CREDITS = int(limits.CREDITS.most)


class Hello(NamedTuple):
    """How an actor introduces a stream; `session` is the stream's number."""

    session: int
    actor_id: str
    node_id: str = ""
    incarnation: int = 0
    slots: int = 1
    kinds: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    leases: tuple[LeaseName, ...] = ()
    message_bytes: int = 0
    # Where its metrics are. The host comes from the connection, never from what the actor says.
    metrics_port: int = 0
    host: str = ""
    # Whether the caller has proven which node it is on; then actor ids belong to nodes.
    proven: bool = False
    # Labels from the node's certificate.
    attested: tuple[tuple[str, str], ...] = ()


class Sessions:
    """Connects, disconnects, commands and forgets."""

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._config = life.config.leases
        # Every open stream; a replaced one is kept until it ends, so that its last results count.
        self.by_number: dict[int, Actor] = {}
        # Actors whose room may have changed by other means than their own message.
        self.unsettled: dict[Actor, None] = {}
        self.quarantine = NodeQuarantine(life, self.unsettled)
        self.leases = Leases(life, self.unsettled, self.quarantine)
        # The last measured time from first sight of a policy version to its use by every connected user of policies.
        self.policy_update_seconds = 0.0
        self._policy_version = 0
        self._policy_seen_at: float | None = None

    def connect(self, hello: Hello, now: float) -> list[Action]:
        _check(hello)
        fleet = self._life.fleet
        known = fleet.actors.get(hello.actor_id)
        actions: list[Action] = []
        if known is not None:
            _check_claim(known, hello, known.last_seen + self._config.duration_seconds - now)
            if known.session:
                actions.append(Close(known.session))
            if hello.proven and known.incarnation >= 0 and known.node_id != hello.node_id:
                self._evict(known, now)
                known = None
        actor = known or Actor(hello.actor_id, since=now if hello.proven else 0.0)
        restarted = actor.incarnation >= 0 and actor.incarnation != hello.incarnation
        before = (actor.node_id, actor.incarnation, actor.slots)
        fleet.displace(actor)
        actor.node_id, actor.incarnation, actor.slots = hello.node_id, hello.incarnation, hello.slots
        actor.session, actor.silent, actor.credits, actor.named = hello.session, False, 0, set()
        actor.message_bytes = hello.message_bytes or UNTOLD_MESSAGE_BYTES
        actor.host, actor.metrics_port = hello.host, hello.metrics_port
        actor.last_seen = now
        actor.depth = max(actor.depth, actor.slots)
        if restarted:
            actor.draining = False
            actor.run_seconds, actor.slowness, actor.depth, actor.even = 0.0, 1.0, actor.slots, False
            actor.policy_version = 0
        self.by_number[hello.session] = actor
        fleet.place(actor, hello.kinds, self._labels(hello), self._life.queue.classes.values())
        self._life.roster.announce_kinds(actor, now)
        if before != (actor.node_id, actor.incarnation, actor.slots):
            self._life.roster.introduce(actor)
        self.quarantine.apply_to(actor)
        standing = [] if actor.quarantined else self.leases.reattach(actor, hello.leases, now)
        self.leases.drop_others(actor, {lease.lease_id for lease in standing}, restarted, now)
        actions.append(Welcome(hello.session, standing, max(before[1], hello.incarnation)))
        if actor.draining:
            # It may not have heard of it: it was away, or its stream broke.
            actions.append(Command(hello.session, ActorCommand.DRAIN))
        self.unsettled[actor] = None
        return actions

    def disconnect(self, session: int, now: float) -> None:
        actor = self.by_number.pop(session, None)
        if actor is None or actor.session != session:
            return
        self._life.fleet.displace(actor)
        actor.session, actor.credits = 0, 0
        actor.lost_at, actor.kept_until = now, now + self._config.reconnect_seconds
        if actor.draining:
            # It is leaving and will not come back for them.
            for task in list(actor.leases.values()):
                self._life.take_back(task, now)

    def hear(self, actor: Actor, now: float, *, credits: int, leaving: bool) -> None:
        actor.last_seen = now
        actor.silent = False
        if leaving:
            actor.draining = True
        actor.credits = min(MAX_CREDITS, actor.credits + credits)

    def command(self, actor: Actor, command: ActorCommand, now: float) -> None:
        if command is ActorCommand.PAUSE:
            self._life.roster.pause(actor, True)
        elif command is ActorCommand.RESUME:
            # An actor that drains cannot be called back.
            self._life.roster.pause(actor, False)
            self.quarantine.release(actor.node_id)
        elif command is ActorCommand.DRAIN:
            actor.draining = True
        else:
            self.quarantine.release(actor.node_id)
            for task in list(actor.leases.values()):
                self._life.revoke(actor, task.lease)
                self._life.take_back(task, now)
        self.unsettled[actor] = None

    def expire(self, now: float) -> None:
        """Ends expired leases, and forgets actors that did not come back."""
        actors, retention = self._life.fleet.actors, self._life.config.retention
        self.quarantine.expire(now)
        forgotten = []
        # Lost actors without leases, by node.
        idle: dict[str, list[Actor]] = {}
        for actor in actors.values():
            if actor.session:
                self.leases.expire(actor, now)
            elif actor.leases:
                if now >= actor.kept_until:
                    self.leases.give_away(actor, now)
            elif actor.paused:
                continue
            elif now >= actor.lost_at + retention.actor_seconds:
                forgotten.append(actor)
            else:
                idle.setdefault(actor.node_id, []).append(actor)
        for lost in idle.values():
            if len(lost) > retention.actors_per_node:
                lost.sort(key=lambda actor: actor.lost_at)
                forgotten += lost[: len(lost) - retention.actors_per_node]
        for actor in forgotten:
            self._life.roster.dismiss(actor.actor_id)

    def see_policy(self, actor: Actor, version: int, now: float) -> None:
        """Takes the policy version that an actor uses; 0 from one that uses none."""
        if not version or version == actor.policy_version:
            return
        # Versions grow within a run. A lower one is the first sight of another run if the actor had a higher one, or if
        # nobody uses the newest any more, because all have restarted.
        newest = (
            version > self._policy_version
            or version < actor.policy_version
            or all(other.policy_version != self._policy_version for other in self.by_number.values())
        )
        if newest and version != self._policy_version:
            self._policy_version, self._policy_seen_at = version, now
        actor.policy_version = version

    def follow_policy(self, now: float) -> None:
        """Ends the measurement once every connected user of policies has the newest."""
        if self._policy_seen_at is None:
            return
        users = [actor for actor in self.by_number.values() if actor.policy_version and not actor.silent]
        if all(actor.policy_version == self._policy_version for actor in users):
            self.policy_update_seconds, self._policy_seen_at = now - self._policy_seen_at, None

    def _labels(self, hello: Hello) -> list[tuple[str, str]]:
        """The labels it claims, those of its certificate, and those the operator gives its node, which win."""
        attested = dict(hello.attested)
        if hello.proven:
            attested |= self._life.config.attested_labels.get(hello.node_id, {})
        return [*hello.labels, *((ATTESTED + name, value) for name, value in attested.items())]

    def _evict(self, actor: Actor, now: float) -> None:
        """Takes everything from an actor whose id belongs to another node; the caller closes its stream."""
        self._life.fleet.displace(actor)
        for task in list(actor.leases.values()):
            self._life.take_back(task, now)
        actor.session, actor.credits = 0, 0
        self._life.roster.dismiss(actor.actor_id)


def _check_claim(actor: Actor, hello: Hello, lapse_seconds: float) -> None:
    """Refuses a hello that may not speak for the known `actor`, which counts as silent after `lapse_seconds` more."""
    at_work = bool(actor.session or actor.leases)
    if actor.incarnation >= 0 and actor.node_id != hello.node_id:
        if not at_work and not hello.proven:
            return
        if hello.proven and _named_after(actor.actor_id, hello.node_id) > _named_after(actor.actor_id, actor.node_id):
            return
        raise AlreadyExists(
            f'actor "{hello.actor_id}" belongs to node "{actor.node_id}"; '
            f'an actor on node "{hello.node_id}" needs an id of its own, such as "{hello.node_id}-1"',
            reason="ACTOR_OF_ANOTHER_NODE",
            actor_id=hello.actor_id,
        )
    if hello.incarnation < actor.incarnation and at_work:
        raise FailedPrecondition(
            f'actor "{hello.actor_id}" has incarnation {actor.incarnation} already; '
            f"incarnation {hello.incarnation} is an older start of it",
            reason="OLD_INCARNATION",
            actor_id=hello.actor_id,
            # While the newer start is heard, the older must go; if it is silent, a clock may have gone back.
            **(
                {"lapse_seconds": round(max(lapse_seconds, 0.0), 3)}
                if actor.session and not actor.silent
                else {"newest_incarnation": actor.incarnation}
            ),
        )


def _named_after(actor_id: str, node_id: str) -> int:
    """How many characters of the id are the node's name. The longest match owns the id, so another node cannot block a
    node's own actors by connecting first."""
    return len(node_id) if actor_id == node_id or actor_id.startswith(f"{node_id}-") else 0


def _check(hello: Hello) -> None:
    if not hello.actor_id:
        raise InvalidInput("hello has no actor_id", reason="MISSING_ACTOR_ID")
    owner = f'actor "{hello.actor_id[: limits.SHOWN]}"'
    if not hello.kinds:
        raise InvalidInput(f"{owner} has no kinds; it could run nothing", reason="MISSING_KINDS")
    limits.ACTOR_ID.check_text(hello.actor_id)
    limits.NODE_ID.check_text(hello.node_id, owner)
    limits.INCARNATION.check(hello.incarnation, owner)
    limits.SLOTS.check(hello.slots, owner)
    limits.LEASES.check(len(hello.leases), owner)
    limits.KINDS.check(len(hello.kinds), owner)
    for kind in hello.kinds:
        limits.KIND.check_text(kind, owner)
    submission_limits.check_labels(hello.labels, owner)
    size = sum(len(text.encode()) for text in (*hello.kinds, *chain.from_iterable(hello.labels)))
    limits.ABILITIES.check(size, owner)
    for name, _ in hello.labels:
        if name.startswith(ATTESTED):
            raise InvalidInput(
                f'{owner} claims the label "{name}"; only an operator gives those', reason="CLAIMED_LABEL"
            )
