"""Known actors, nodes and kinds, and the records of them that a restart needs. Part of the core: no I/O."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from parlmesh import limits
from parlmesh.errors import InvalidInput, NotFound

from ..actions import Decided, Dismissed, Introduced, Kinds, NodeRecord, Paused
from .placement import Actor, Fleet

# Half a megabyte if every name has the longest length.
MOST_KINDS = 4096
# Kinds that only one node has announced, per node, so that no single node can push out the others' kinds.
MOST_OWN_KINDS = 1024


class KnownKinds(Collection[str]):
    """Names in the order in which they were last announced, the oldest first."""

    def __init__(self) -> None:
        self._announced: dict[str, float] = {}
        # Kinds that only one node has announced, by node, in the same order; empty after a restart.
        self._own: dict[str, dict[str, None]] = {}
        self._owner: dict[str, str] = {}

    def __contains__(self, kind: object) -> bool:
        return kind in self._announced

    def __iter__(self) -> Iterator[str]:
        return iter(self._announced)

    def __len__(self) -> int:
        return len(self._announced)

    def announce(self, kinds: Iterable[str], now: float, node_id: str | None = None) -> tuple[list[str], list[str]]:
        """Returns the kinds that were not known, and those forgotten to make room."""
        announced = self._announced
        fresh = []
        for kind in dict.fromkeys(kinds):
            owner = node_id
            if announced.pop(kind, None) is None:
                fresh.append(kind)
            elif self._disown(kind) != node_id:
                owner = None
            announced[kind] = now
            if owner is not None:
                self._own.setdefault(owner, {})[kind] = None
                self._owner[kind] = owner
        own = self._own.get(node_id, {}) if node_id is not None else {}
        forgotten = self._forget(list(islice(own, max(0, len(own) - MOST_OWN_KINDS))))
        return fresh, forgotten + self._forget(list(islice(announced, max(0, len(announced) - MOST_KINDS))))

    def expire(self, before: float, used: Collection[str]) -> list[str]:
        """Forgets and returns the kinds that were last announced before `before` and are not `used` now."""
        old = []
        for kind, announced in self._announced.items():
            if announced > before:
                break
            if kind not in used:
                old.append(kind)
        return self._forget(old)

    def _forget(self, kinds: list[str]) -> list[str]:
        for kind in kinds:
            del self._announced[kind]
            self._disown(kind)
        return kinds

    def _disown(self, kind: str) -> str | None:
        """Clears and returns the only node that has announced a kind, if there is just one."""
        owner = self._owner.pop(kind, None)
        if owner is not None:
            own = self._own[owner]
            del own[kind]
            if not own:
                del self._own[owner]
        return owner


class Roster:
    """Finds actors by name, keeps the facts about actors and kinds, and notes every change for the journal."""

    def __init__(self, fleet: Fleet, decided: Decided, kind_seconds: float) -> None:
        self._fleet = fleet
        self._decided = decided
        self._kind_seconds = kind_seconds
        self.kinds = KnownKinds()

    def named(self, actor_ids: Sequence[str], others: int) -> list[Actor]:
        """The actors with these ids; `others` is how many are named in other ways."""
        if not actor_ids and not others:
            raise InvalidInput("actor_ids is empty; name at least one actor", reason="MISSING_ACTOR_IDS")
        if actor_ids or others > limits.ACTOR_IDS.most:
            limits.ACTOR_IDS.check(len(actor_ids) + others, "the request")
        return [self.actor(actor_id) for actor_id in dict.fromkeys(actor_ids)]

    def actor(self, actor_id: str) -> Actor:
        actor = self._fleet.actors.get(actor_id)
        if actor is None:
            raise NotFound(
                f'actor "{limits.ACTOR_ID.shorten(actor_id)}" is unknown', reason="UNKNOWN_ACTOR", actor_id=actor_id
            )
        return actor

    def check_nodes(self, node_ids: Iterable[str]) -> None:
        """NotFound for a node that has no listed actor."""
        for node_id in frozenset(node_ids) - {actor.node_id for actor in self._fleet.actors.values()}:
            shown = limits.NODE_ID.shorten(node_id)
            raise NotFound(f'node "{shown}" has no actor here', reason="UNKNOWN_NODE", node_id=shown)

    def of_nodes(self, node_ids: Iterable[str]) -> list[Actor]:
        """All listed actors of these nodes."""
        nodes = frozenset(node_ids)
        return [actor for actor in self._fleet.actors.values() if actor.node_id in nodes]

    def pause(self, actor: Actor, paused: bool) -> None:
        """Pauses an actor, or lets it continue."""
        if actor.paused != paused:
            actor.paused = paused
            self._decided.pauses.append(Paused(actor.actor_id, paused))

    def introduce(self, actor: Actor) -> None:
        """Notes the facts about a connected actor that a restart needs."""
        self._decided.actors.append(Introduced(actor.actor_id, actor.node_id, actor.incarnation, actor.slots))

    def dismiss(self, actor_id: str) -> None:
        """Removes an actor from the list."""
        del self._fleet.actors[actor_id]
        self._decided.actors.append(Dismissed(actor_id))

    def judge(self, record: NodeRecord) -> None:
        """Notes a node's strikes and quarantine."""
        self._decided.actors.append(record)

    def announce_kinds(self, actor: Actor, now: float) -> None:
        """Notes the kinds that an actor offers."""
        fresh, forgotten = self.kinds.announce(sorted(actor.kinds), now, actor.node_id)
        self._note_kinds(True, fresh)
        self._note_kinds(False, forgotten)

    def forget_kinds(self, now: float) -> None:
        """Forgets kinds that no actor has announced for long."""
        before = now - self._kind_seconds
        self._note_kinds(False, self.kinds.expire(before, self._fleet.present_kinds()))

    def _note_kinds(self, known: bool, names: list[str]) -> None:
        if names:
            self._decided.kinds.append(Kinds(known, tuple(names)))
