"""The actions that the core wants the shell to perform and the store to keep: plain data, collected here."""

from collections.abc import Sequence
from typing import NamedTuple

from .actors.placement import Actor, ActorCommand
from .task import LeaseName, Task


class Welcome(NamedTuple):
    """The first message on a new stream: the leases that are still valid."""

    session: int
    leases: list[LeaseName]
    # The highest known incarnation of the actor.
    newest_incarnation: int = 0


class Assign(NamedTuple):
    """Tasks to run; each was just leased to the actor of this stream.

    A task's first lease is sent immediately: if the scheduler dies before it is durable, no other actor can claim the
    task. A later lease waits for the commit; otherwise a restart could revive the lease before it, and two actors would
    have the task. Its time starts after the wait, with `Core.begin`.
    """

    session: int
    tasks: list[Task]
    after_commit: bool = False


class Revoke(NamedTuple):
    """Leases to stop working on."""

    session: int
    leases: list[LeaseName]


class Command(NamedTuple):
    """An operator's command to an actor."""

    session: int
    command: ActorCommand


class Close(NamedTuple):
    """The stream was replaced by a newer one of the same actor."""

    session: int


class Notify(NamedTuple):
    """Tasks that are final now. Performed after the commit, and reported to `Core.announced`."""

    tasks: list[Task]


class Returned(NamedTuple):
    """A lease ended and the task waits again. `time` is on the journal's clock; 0 in an older journal without it."""

    number: int
    attempts: int
    failures: int
    losses: int
    time: float = 0.0


class Paused(NamedTuple):
    """An actor was paused or resumed."""

    actor_id: str
    paused: bool


class Introduced(NamedTuple):
    """An actor connected for the first time, or with another node, incarnation or number of slots."""

    actor_id: str
    node_id: str
    incarnation: int
    slots: int


class Dismissed(NamedTuple):
    """An actor is no longer listed."""

    actor_id: str


class NodeRecord(NamedTuple):
    """Strikes and quarantine of a node from now on; with neither, it is forgiven. Times are on the journal's clock."""

    node_id: str
    strikes: tuple[float, ...] = ()
    until: float = 0.0
    reason: str = ""


class Kinds(NamedTuple):
    """Kinds that are known from now on, or no longer."""

    known: bool
    names: tuple[str, ...]


class Persist(NamedTuple):
    """The journal's record of one event, in the order of replay; always the first action.

    Tasks are recorded as they are now: the shell encodes them before the next event. `time` is on the journal's own
    clock, which starts at the wall clock, never jumps, and stands still while the scheduler is down.
    """

    time: float
    submitted: list[Task]
    returned: list[Returned]
    finished: list[Task]
    leased: list[Task]
    # How many finished tasks are no longer kept, counted from the first to finish.
    forgotten: int
    paused: list[Paused]
    actors: Sequence[Introduced | Dismissed | NodeRecord] = ()
    kinds: Sequence[Kinds] = ()


ToActor = Welcome | Assign | Revoke | Command | Close
Action = ToActor | Notify | Persist


class Decided:
    """The decisions since the last `Core.take_actions`. Every part of the core adds to it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Starts new lists; those that were taken are not changed."""
        self.submitted: list[Task] = []
        self.returned: list[Returned] = []
        self.leased: list[Task] = []
        self.finished: list[Task] = []
        self.forgotten = 0
        self.pauses: list[Paused] = []
        self.actors: list[Introduced | Dismissed | NodeRecord] = []
        self.kinds: list[Kinds] = []
        self.said: list[Action] = []
        self.revoked: dict[int, list[LeaseName]] = {}
        self.assigned: dict[Actor, list[Task]] = {}
        self.assigned_again: dict[Actor, list[Task]] = {}

    @property
    def for_journal(self) -> bool:
        """Whether the journal must keep any of it."""
        return bool(
            self.submitted
            or self.returned
            or self.finished
            or self.leased
            or self.forgotten
            or self.pauses
            or self.actors
            or self.kinds
        )
