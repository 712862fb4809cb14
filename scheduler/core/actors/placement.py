"""Actors, what each can run, and which of the idle ones gets a task. Knows no gRPC and keeps no task order.

Actors with the same kinds and labels form a profile, so matching is done once per profile and class. A profile keeps
two pools: actors with a free slot, and actors that are busy but may hold a little more (see `Actor.measure`).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import TypeAlias

from ..queue.task_class import TaskClass
from ..task import Task

# Handlers faster than this are treated alike, which bounds how many tasks an actor holds.
SHORTEST_RUN_SECONDS = 20e-6
SMOOTHING = 0.1


class ActorState(IntEnum):
    """Numbered as in the contract."""

    READY = 1
    PAUSED = 2
    DRAINING = 3
    LOST = 4
    QUARANTINED = 5


class ActorCommand(IntEnum):
    """Numbered as in the contract."""

    PAUSE = 1
    RESUME = 2
    RESET = 3
    DRAIN = 4
    QUARANTINE = 5
    STRIKE = 6


# Most bytes that an assignment adds to its payload: its lease and the framing.
ASSIGNMENT_BYTES = 2048
# Every actor takes messages of twice this size.
_SMALL_BYTES = 32 << 10
# Any actor can take an assignment with a body of this size.
SMALL_BODY_BYTES = _SMALL_BYTES - ASSIGNMENT_BYTES
# The limit of an actor that names none: releases that do not name one accept this much.
UNTOLD_MESSAGE_BYTES = 8 << 20


def message_bytes(body: bytes) -> int:
    """Bytes that an actor must accept in one message to get this assignment, rounded up to keep classes few."""
    needed = len(body) + ASSIGNMENT_BYTES
    if needed <= _SMALL_BYTES:
        return 0
    half = 1 << ((needed - 1).bit_length() - 1)
    return half * 3 // 2 if needed <= half * 3 // 2 else half * 2


class Actor:
    """One actor process as the scheduler sees it."""

    __slots__ = (
        "actor_id",
        "completed",
        "credits",
        "depth",
        "draining",
        "ending",
        "even",
        "failed",
        "host",
        "incarnation",
        "index",
        "kept_until",
        "kinds",
        "labels",
        "last_seen",
        "late",
        "leases",
        "lost_at",
        "message_bytes",
        "metrics_port",
        "named",
        "node_id",
        "paused",
        "pinned",
        "policy_version",
        "pool",
        "profile",
        "quarantined",
        "revocations",
        "revocations_until",
        "run_deviation",
        "run_seconds",
        "scan_at",
        "session",
        "silent",
        "since",
        "slots",
        "slowness",
    )

    def __init__(self, actor_id: str, node_id: str = "", since: float = 0.0) -> None:
        self.actor_id = actor_id
        # Earlier leases belong to another actor that had the same id.
        self.since = since
        self.node_id = node_id
        # -1 until it has introduced itself.
        self.incarnation = -1
        self.slots = 1
        self.kinds: frozenset[str] = frozenset()
        self.labels: frozenset[tuple[str, str]] = frozenset()
        # Largest message it takes.
        self.message_bytes = 0
        # Port of its metrics; 0 = none.
        self.host = ""
        self.metrics_port = 0
        self.profile: Profile | None = None
        self.pinned: dict[TaskClass, None] = {}
        # Number of its stream; 0 when it has none.
        self.session = 0
        self.paused = False
        self.draining = False
        # Together with its whole node.
        self.quarantined = False
        # Connected, but its heartbeats stopped.
        self.silent = False
        self.lost_at = 0.0
        # While it is disconnected, its leases wait for it until this time.
        self.kept_until = 0.0
        self.last_seen = 0.0
        # Unknown leases that it named and that were answered, and when counting them starts again.
        self.revocations = 0
        self.revocations_until = 0.0
        self.scan_at = 0.0
        self.credits = 0
        # By lease id, oldest first; the first `slots` of them are assumed to be running.
        self.leases: dict[int, Task] = {}
        # Leases that its last heartbeat named and that need a slot: they had not ended then.
        self.named: set[int] = set()
        # Leases whose queue_timeout is over: they end with a heartbeat that shows that they still wait for a slot.
        self.late: set[int] = set()
        # Leases that should end any moment; for each it may hold another task.
        self.ending: set[int] = set()
        self.completed = 0
        self.failed = 0
        self.policy_version = 0
        # Mean seconds of its runs, 0 until measured, and how slow they are relative to the fleet's mean for their kind.
        self.run_seconds = 0.0
        self.slowness = 1.0
        # Mean deviation of its runs from that mean, in seconds, and whether their ends can be foreseen.
        self.run_deviation = 0.0
        self.even = False
        self.depth = 1
        self.pool: Pool | None = None
        self.index = 0

    @property
    def state(self) -> ActorState:
        if not self.session or self.silent:
            return ActorState.LOST
        if self.quarantined:
            return ActorState.QUARANTINED
        if self.draining:
            return ActorState.DRAINING
        return ActorState.PAUSED if self.paused else ActorState.READY

    @property
    def room(self) -> int:
        """How many more tasks it may be given now."""
        if not self.session or self.silent or self.draining or self.paused or self.quarantined:
            return 0
        return min(self.credits, self.depth + len(self.ending) - len(self.leases))

    @property
    def load(self) -> float:
        return self.slowness * (len(self.leases) + 1) / self.slots

    @property
    def classes(self) -> Iterable[TaskClass]:
        assert self.profile is not None
        return [*self.profile.classes, *self.pinned] if self.pinned else self.profile.classes

    def measure(self, count: int, mean: float, fleet_mean: float, prefetch_seconds: float) -> None:
        """Records runs of one kind. Short tasks are held in advance, `prefetch_seconds` of work in all: a slot never
        waits for a round trip, and an urgent task never waits behind more than that. If tasks are longer and of even
        length, the next is assigned that long before the current one ends."""
        weight = 1.0 - (1.0 - SMOOTHING) ** count
        if not self.run_seconds:
            self.run_seconds = mean
        self.run_deviation += weight * (abs(mean - self.run_seconds) - self.run_deviation)
        self.run_seconds += weight * (mean - self.run_seconds)
        self.even = self.run_deviation <= prefetch_seconds < self.run_seconds
        if fleet_mean > 0.0:
            self.slowness += weight * (min(100.0, mean / fleet_mean) - self.slowness)
        self.depth = self.slots + int(self.slots * prefetch_seconds / max(self.run_seconds, SHORTEST_RUN_SECONDS))

    def had(self, task: Task) -> bool:
        """Whether the last lease of a task was this actor's, lost or not."""
        return task.actor is self or (task.actor_id == self.actor_id and task.lease_time >= self.since)

    def running(self) -> int:
        return min(len(self.leases), self.slots)


class Pool:
    """A set of actors with a random choice in constant time."""

    __slots__ = ("actors",)

    def __init__(self) -> None:
        self.actors: list[Actor] = []

    def add(self, actor: Actor) -> None:
        actor.pool, actor.index = self, len(self.actors)
        self.actors.append(actor)

    def remove(self, actor: Actor) -> None:
        last = self.actors.pop()
        if last is not actor:
            self.actors[actor.index] = last
            last.index = actor.index
        actor.pool = None


ProfileKey: TypeAlias = "tuple[frozenset[str], frozenset[tuple[str, str]], int]"


class Profile:
    """Actors that can run the same classes, apart from classes pinned to a node."""

    __slots__ = ("classes", "free", "kinds", "labels", "members", "message_bytes", "spare")

    def __init__(self, kinds: frozenset[str], labels: frozenset[tuple[str, str]], message_bytes: int) -> None:
        self.kinds = kinds
        self.labels = labels
        self.message_bytes = message_bytes
        self.members = 0
        self.classes: dict[TaskClass, None] = {}
        self.free = Pool()
        self.spare = Pool()

    @property
    def key(self) -> ProfileKey:
        return self.kinds, self.labels, self.message_bytes

    def matches(self, task_class: TaskClass) -> bool:
        _, labels, message_bytes = task_class.placement
        return task_class.kind in self.kinds and labels <= self.labels and message_bytes <= self.message_bytes


class Fleet:
    """All known actors, and what each can run."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self.actors: dict[str, Actor] = {}
        self._profiles: dict[ProfileKey, Profile] = {}
        self._nodes: dict[str, list[Actor]] = {}
        # Classes are keys, so that one is removed in one step, however many there are.
        self._pinned: dict[str, dict[TaskClass, None]] = {}
        self.slots = 0
        """Slots of all connected actors."""

    def place(
        self, actor: Actor, kinds: Iterable[str], labels: Iterable[tuple[str, str]], known: Iterable[TaskClass]
    ) -> None:
        """Adds an actor, or moves one that came back with other abilities. `known` are all current classes."""
        self.displace(actor)
        self.actors[actor.actor_id] = actor
        actor.kinds, actor.labels = frozenset(kinds), frozenset(labels)
        key = (actor.kinds, actor.labels, actor.message_bytes)
        profile = self._profiles.get(key)
        if profile is None:
            profile = self._profiles[key] = Profile(*key)
            for task_class in known:
                if not task_class.placement.node_id and profile.matches(task_class):
                    profile.classes[task_class] = None
                    task_class.profiles.append(profile)
        profile.members += 1
        self.slots += actor.slots
        actor.profile = profile
        self._nodes.setdefault(actor.node_id, []).append(actor)
        pinned = self._pinned.get(actor.node_id, ())
        actor.pinned = dict.fromkeys([task_class for task_class in pinned if profile.matches(task_class)])

    def present_kinds(self) -> set[str]:
        """The kinds of all connected actors."""
        return {kind for profile in self._profiles.values() for kind in profile.kinds}

    def absent(self, task_class: TaskClass) -> str:
        """Says that no connected actor has the node or the labels of a class; empty if one has."""
        node_id, labels, _ = task_class.placement
        here = self._nodes.get(node_id, ())
        if node_id and not here:
            return f'no actor is on node "{node_id}"'
        profiles = [actor.profile for actor in here] if node_id else self._profiles.values()
        if not labels or any(profile is not None and labels <= profile.labels for profile in profiles):
            return ""
        asked = ", ".join(f"{key}={value}" for key, value in sorted(labels))
        return f"no actor has the labels {asked}{f' on node {node_id!r}' if node_id else ''}"

    def displace(self, actor: Actor) -> None:
        """Takes an actor out of placement; it stays in `actors`."""
        profile = actor.profile
        if profile is None:
            return
        if actor.pool is not None:
            actor.pool.remove(actor)
        actor.profile = None
        actor.pinned = {}
        self.slots -= actor.slots
        neighbours = self._nodes[actor.node_id]
        neighbours.remove(actor)
        if not neighbours:
            del self._nodes[actor.node_id]
        profile.members -= 1
        if not profile.members:
            del self._profiles[profile.key]
            for task_class in profile.classes:
                task_class.profiles.remove(profile)

    def add_class(self, task_class: TaskClass) -> None:
        node_id = task_class.placement.node_id
        if node_id:
            self._pinned.setdefault(node_id, {})[task_class] = None
            for actor in self._nodes.get(node_id, ()):
                if actor.profile is not None and actor.profile.matches(task_class):
                    actor.pinned[task_class] = None
            return
        for profile in self._profiles.values():
            if profile.matches(task_class):
                profile.classes[task_class] = None
                task_class.profiles.append(profile)

    def drop_class(self, task_class: TaskClass) -> None:
        node_id = task_class.placement.node_id
        if not node_id:
            for profile in task_class.profiles:
                del profile.classes[task_class]
            return
        del self._pinned[node_id][task_class]
        if not self._pinned[node_id]:
            del self._pinned[node_id]
        for actor in self._nodes.get(node_id, ()):
            actor.pinned.pop(task_class, None)

    def settle(self, actor: Actor) -> None:
        """Puts the actor into the pool that its room calls for."""
        profile = actor.profile
        if profile is None:
            return
        wanted: Pool | None = None
        if actor.room > 0:
            wanted = profile.free if len(actor.leases) < actor.slots else profile.spare
        if actor.pool is not wanted:
            if actor.pool is not None:
                actor.pool.remove(actor)
            if wanted is not None:
                wanted.add(actor)

    def choose(self, task_class: TaskClass, *, free_only: bool = False) -> Actor | None:
        """An actor with room for this class: the less loaded of two random ones, free slots before held tasks."""
        if task_class.placement.node_id:
            return self._choose_on_node(task_class, free_only)
        profiles = task_class.profiles
        free = True
        pool = _pool_with_room(profiles, self._random(), free)
        if pool is None and not free_only:
            free = False
            pool = _pool_with_room(profiles, self._random(), free)
        if pool is None:
            return None
        first = pool.actors[int(self._random() * len(pool.actors))]
        if len(profiles) > 1:
            pool = _pool_with_room(profiles, self._random(), free) or pool
        second = pool.actors[int(self._random() * len(pool.actors))]
        return first if first is second or first.load <= second.load else second

    def able(self, task_class: TaskClass) -> Iterator[Actor]:
        """Every actor, lost ones included, that could run this class."""
        node_id, labels, message_bytes = task_class.placement
        for actor in self.actors.values():
            known = task_class.kind in actor.kinds and message_bytes <= actor.message_bytes
            if known and labels <= actor.labels and node_id in ("", actor.node_id):
                yield actor

    def _choose_on_node(self, task_class: TaskClass, free_only: bool) -> Actor | None:
        hosts = [
            actor
            for actor in self._nodes.get(task_class.placement.node_id, ())
            if actor.pool is not None and task_class in actor.pinned
        ]
        free = [actor for actor in hosts if len(actor.leases) < actor.slots]
        return min(free or (() if free_only else hosts), key=lambda actor: actor.load, default=None)


def _pool_with_room(profiles: list[Profile], chance: float, free: bool) -> Pool | None:
    """The first non-empty pool, starting at a random one; `chance` is in [0, 1)."""
    count = len(profiles)
    start = int(chance * count)
    for offset in range(count):
        profile = profiles[(start + offset) % count]
        pool = profile.free if free else profile.spare
        if pool.actors:
            return pool
    return None
