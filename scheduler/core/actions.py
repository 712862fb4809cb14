"""What the core wants done (the shell performs it) and remembered (the store keeps it): plain data, collected here."""

from collections.abc import Sequence
from typing import NamedTuple

from .placement import Actor, ActorCommand
from .task import LeaseName, Task


class Welcome(NamedTuple):
    """First word to a new stream: the leases that still stand."""

    session: int
    leases: list[LeaseName]
    # The highest incarnation that is known of the actor.
    newest_incarnation: int = 0


class Assign(NamedTuple):
    """Tasks to run; each was just leased to the actor of this stream.

    A first lease goes out at once: if the scheduler dies before it is durable, nobody else can claim the task. A later
    one waits for the commit, or a restart could take up the lease before it and give the task to two. Its time begins
    when the wait is over: `Core.begin`.
    """

    session: int
    tasks: list[Task]
    after_commit: bool = False


class Revoke(NamedTuple):
    """Leases to stop working on."""

    session: int
    leases: list[LeaseName]


class Command(NamedTuple):
    """An operator's word to an actor."""

    session: int
    command: ActorCommand


class Close(NamedTuple):
    """The stream was replaced by a newer one of the same actor."""

    session: int


class Notify(NamedTuple):
    """Tasks that are final now. Waits for the commit; `Core.announced` hears of it."""

    tasks: list[Task]


class Returned(NamedTuple):
    """A lease ended and the task waits again. `time` is the journal's, 0 where an older journal does not say."""

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
    """An actor connected, for the first time or as something else than before."""

    actor_id: str
    node_id: str
    incarnation: int
    slots: int


class Dismissed(NamedTuple):
    """An actor is no longer listed."""

    actor_id: str


class Standing(NamedTuple):
    """Strikes and quarantine of a node from now on; with neither, it is forgiven. Times are the journal's."""

    node_id: str
    strikes: tuple[float, ...] = ()
    until: float = 0.0
    reason: str = ""


class Kinds(NamedTuple):
    """Kinds that are known from now on, or no longer."""

    known: bool
    names: tuple[str, ...]


class Persist(NamedTuple):
    """What the journal keeps of one event, in the order of replay; comes first among the actions.

    Tasks stand for what they are now: the shell encodes them before the next event. `time` is the journal's own: it
    begins with the wall clock, never jumps, and stands still while the scheduler is away.
    """

    time: float
    submitted: list[Task]
    returned: list[Returned]
    finished: list[Task]
    leased: list[Task]
    # How many of those that finished first are no longer kept.
    forgotten: int
    paused: list[Paused]
    actors: Sequence[Introduced | Dismissed | Standing] = ()
    kinds: Sequence[Kinds] = ()


ToActor = Welcome | Assign | Revoke | Command | Close
Action = ToActor | Notify | Persist


class Decided:
    """What was decided since the last `Core.take_actions`. Every part of the core adds to it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins anew; what was taken stays as it is."""
        self.submitted: list[Task] = []
        self.returned: list[Returned] = []
        self.leased: list[Task] = []
        self.finished: list[Task] = []
        self.forgotten = 0
        self.pauses: list[Paused] = []
        self.actors: list[Introduced | Dismissed | Standing] = []
        self.kinds: list[Kinds] = []
        self.said: list[Action] = []
        self.revoked: dict[int, list[LeaseName]] = {}
        self.assigned: dict[Actor, list[Task]] = {}
        self.assigned_again: dict[Actor, list[Task]] = {}

    @property
    def for_journal(self) -> bool:
        """Whether the journal must keep something of it."""
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
