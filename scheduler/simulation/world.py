"""The simulated world: time, streams with delays, and a scheduler that stalls, crashes and comes back."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from parlmesh.errors import FleetError

from ..config import SchedulerConfig
from ..core.actions import Action, Assign, Close, Command, Notify, Persist, Revoke, ToActor, Welcome
from ..core.actors.actor_sessions import Hello
from ..core.core import Core
from ..core.task import LeaseName, Task
from ..journal.records import encode
from ..store import MemoryStore
from .actors import SimulatedActor
from .invariants import Books, Violation, check_whole
from .journal_replay import differences, take_over
from .load import Load

LONGEST_END_SECONDS = 3000.0
WALL_START = 1_700_000_000.0


@dataclass(frozen=True)
class Options:
    """Size and roughness of a schedule."""

    actors: int = 4
    tasks: int = 24
    fault_seconds: float = 30.0
    faults: int = 8
    mean_seconds: float = 1.0
    failure_share: float = 0.1
    poison_share: float = 0.02
    tick_seconds: float = 0.5


def run_schedule(seed: int, options: Options | None = None) -> World:
    """Runs one schedule to its end; raises Violation."""
    world = World(seed, options or Options())
    world.run()
    return world


class World:
    """Everything around the core. All randomness comes from the seed."""

    def __init__(self, seed: int, options: Options) -> None:
        self.options = options
        self._rng = rng = random.Random(seed)  # noqa: S311
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._config = SchedulerConfig.model_validate(
            {
                "leases": {"heartbeat_seconds": 2.0, "duration_seconds": 8.0, "reconnect_seconds": 3.0},
                "dispatch": {"tick_seconds": options.tick_seconds, "prefetch_seconds": rng.choice((0.0, 1.0, 10.0))},
                "queue": {"refuse_unknown_kinds": False, "aging_seconds": rng.choice((1.0, 60.0))},
                "retention": {"max_tasks": rng.choice((5, 1000)), "trace_events": 10},
            }
        )
        self.heartbeat_seconds = self._config.leases.heartbeat_seconds
        self.books = Books(self._config.queue.aging_seconds)
        self._store = MemoryStore(compact_records=rng.choice((50, 10_000)))
        self._wall_skew = 0.0
        self.core: Core | None = None
        self._starts = 0
        self._alarm_time = math.inf
        self._stalled_until = 0.0
        self._sessions = 0
        self._streams: dict[int, SimulatedActor] = {}
        self._last_delivery: dict[tuple[int, str], float] = {}
        # Decisions not yet committed, and the actions that wait for the commit.
        self._uncommitted: list[tuple[bytes, int]] = []
        self._held: list[Callable[[], None]] = []
        self._commit_planned = False
        self._disk_back_at = 0.0
        self._crash_uncommitted = False
        # By actor: until when it may come back, its incarnation, and its tasks by lease.
        self._live_leases: dict[str, tuple[float, int, dict[int, Task]]] = {}
        self.actors: list[SimulatedActor] = []
        self._boot()
        self.actors = [SimulatedActor(self, f"actor-{number}", rng) for number in range(options.actors)]
        Load(self, rng).plan()

    # Time.

    def after(self, seconds: float, act: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, act, *arguments)

    def at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heappush(self._agenda, (time, self._order, act, arguments))

    def run(self) -> None:
        while self._agenda:
            time, _, act, arguments = heappop(self._agenda)
            if time > self.options.fault_seconds and self._all_ended():
                break
            if time > LONGEST_END_SECONDS:
                break
            self.now = time
            act(*arguments)
        self.books.check_end()
        if self.core is not None:
            check_whole(self.core)

    def _all_ended(self) -> bool:
        return self.core is not None and not self._held and self.books.asked_for <= self.books.announced.keys()

    # The scheduler.

    def reachable(self) -> Core | None:
        """The core, if it can be called now."""
        return self.core if self.now >= self._stalled_until else None

    def stall(self, seconds: float) -> None:
        self._stalled_until = self.now + seconds

    def crash_before_the_next_commit(self) -> None:
        self._crash_uncommitted = True

    def hang_disk(self, seconds: float, *, failing: bool) -> None:
        """Commits nothing for `seconds`; the scheduler knows of it only if the disk reports errors (`failing`)."""
        self._disk_back_at = self.now + seconds
        if self.core is not None:
            self.core.life.first_leases_wait = failing

    def jump_wall_clock(self, seconds: float) -> None:
        self._wall_skew += seconds

    def _boot(self) -> None:
        """Starts from the committed records, for the first time or after a crash."""
        self._starts += 1
        self._monotonic_base = self._rng.uniform(0.0, 1e6)
        opened = self._store.open(self._wall())
        batches = list(opened.batches)
        # Every other start is a takeover by a standby.
        core: Core | None = None
        if self._starts % 2 == 0:
            core = take_over(self._new_core(opened.lease_floor), batches, self.monotonic())
        if core is None:
            core = self._new_core(opened.lease_floor)
            core.recover(batches, self.monotonic())
        else:
            self.books.takeovers += 1
        self.books.check_restart(core)
        self.core = core
        self._note_live_leases(core)
        self._alarm_time = math.inf
        self._commit_planned, self._disk_back_at = False, 0.0
        self.perform()
        self.after(self.options.tick_seconds, self._tick, self._starts)

    def _new_core(self, lease_floor: int) -> Core:
        return Core(
            self._config,
            now=self.monotonic(),
            wall_time=self._wall(),
            lease_floor=lease_floor,
            rng=random.Random(self._rng.random()),  # noqa: S311
        )

    def _note_live_leases(self, core: Core) -> None:
        """Notes what living actors hold or have finished and the journal knows of: it must not run again."""
        until = self.now + self._config.leases.duration_seconds - 2 * self.options.tick_seconds
        self._live_leases = {}
        for actor in self.actors:
            known = core.life.fleet.actors.get(actor.name)
            if known is not None and actor.alive:
                kept = (actor.held.keys() | actor.unacknowledged.keys()) & known.leases.keys()
                self._live_leases[actor.name] = (until, actor.incarnation, {key: known.leases[key] for key in kept})

    def _check_live_leases(self, actor: SimulatedActor, core: Core) -> None:
        """Called after an actor came back to a restarted scheduler."""
        until, incarnation, leases = self._live_leases.pop(actor.name, (0.0, 0, {}))
        if self.now > until or incarnation != actor.incarnation:
            return
        standing = core.life.fleet.actors[actor.name].leases
        for lease_id, task in leases.items():
            if lease_id not in standing and not task.final:
                raise Violation(f"{task.task_id} was taken from {actor.name}, which came back in time for it")
        self.books.kept_leases += len(leases)

    def forgo_leases(self, actor: SimulatedActor) -> None:
        """Forgets an actor's live leases: an operator may have taken them."""
        self._live_leases.pop(actor.name, None)

    def crash(self, commit_first: bool) -> None:
        if self.core is None:
            return
        if commit_first:
            self._disk_back_at = 0.0
            self._commit(self._starts)
            self._check_copy(self.core)
        self.core = None
        self._uncommitted.clear()
        self._held.clear()
        for actor in list(self._streams.values()):
            self.break_stream(actor)
        self.after(self._rng.uniform(0.1, 10.0), self._boot)

    def _check_copy(self, core: Core) -> None:
        """Checks that a core rebuilt from the journal knows what the live one knows."""
        found = differences(core, self._store.open(self._wall()).batches, self.monotonic())
        if found:
            raise Violation("; ".join(found[:3]))

    def _tick(self, start: int) -> None:
        if self.core is None or start != self._starts:
            return
        if self.now < self._stalled_until:
            self.at(self._stalled_until, self._tick, start)
            return
        self.core.tick(self.monotonic(), self._wall())
        self.perform()
        self.after(self.options.tick_seconds, self._tick, start)

    def _foresee(self, start: int) -> None:
        if self.core is None or start != self._starts:
            return
        if self.now < self._stalled_until:
            self.at(self._stalled_until, self._foresee, start)
            return
        self._alarm_time = math.inf
        self.core.foresee(self.monotonic())
        self.perform()

    def monotonic(self) -> float:
        return self._monotonic_base + self.now

    def _wall(self) -> float:
        return WALL_START + self._wall_skew + self.now

    def perform(self) -> None:
        core = self.core
        assert core is not None
        for action in core.take_actions():
            self._perform_one(core, action)
        self.books.check_event(core)
        if core.next_ending < self._alarm_time:
            self._alarm_time = core.next_ending
            self.at(max(self.now, core.next_ending - self._monotonic_base), self._foresee, self._starts)
        if self._crash_uncommitted and self._uncommitted:
            # The worst moment: decided, perhaps sent, and not durable.
            self._crash_uncommitted = False
            self.after(self._rng.choice((0.0, 0.0005)), self.crash, False)

    def _perform_one(self, core: Core, action: Action) -> None:
        if isinstance(action, Persist):
            self._uncommitted.append(encode(action))
            if not self._commit_planned:
                self._commit_planned = True
                self.after(self._rng.choice((0.0, 0.001, 0.05)), self._commit, self._starts)
        elif isinstance(action, Notify):
            self.after_commit(lambda: self._announce(core, action))
        else:
            if isinstance(action, Assign):
                self._assign(core, action)
            else:
                self._send_down(action)

    def _announce(self, core: Core, action: Notify) -> None:
        core.announced(len(action.tasks))
        self.books.announce(action)

    def _assign(self, core: Core, action: Assign) -> None:
        self.books.check_order(core, action)
        # Copied, because the tasks keep changing.
        lease_ids = [task.lease_id for task in action.tasks]

        def send() -> None:
            leases = [task.lease for task in core.standing(action.session, action.tasks, lease_ids)]
            self.books.give_out(leases)
            self._send_down(action, leases)

        def send_late() -> None:
            core.begin(action.session, action.tasks, lease_ids, self.monotonic())
            send()

        if action.after_commit:
            self.after_commit(send_late)
        else:
            send()

    def after_commit(self, release: Callable[[], None]) -> None:
        if self._uncommitted:
            self._held.append(release)
        else:
            release()

    def _commit(self, start: int) -> None:
        if self.core is None or start != self._starts:
            return
        if self.now < self._disk_back_at:
            self.at(self._disk_back_at, self._commit, start)
            return
        self._commit_planned = False
        self.core.life.first_leases_wait = False
        for batch, records in self._uncommitted:
            self._store.append(batch, records)
        self._uncommitted.clear()
        held, self._held = self._held, []
        for release in held:
            release()
        if self._store.wants_compaction():
            for _ in self._store.compact():
                continue

    # Streams.

    def connect(self, actor: SimulatedActor, hello: Hello) -> bool:
        if self.core is None or self.now < self._stalled_until:
            return False
        self._sessions += 1
        session = self._sessions
        self._streams[session] = actor
        actor.session = session
        try:
            self.core.connect(hello._replace(session=session), self.monotonic())
        except FleetError:
            del self._streams[session]
            actor.session = 0
            return False
        self._check_live_leases(actor, self.core)
        self.perform()
        return True

    def break_stream(self, actor: SimulatedActor) -> None:
        """The actor knows immediately; the scheduler after a while, or never if it is the one that died."""
        session = actor.session
        if not session:
            return
        self._streams.pop(session, None)
        actor.stream_broke()
        self.after(self._rng.choice((0.0, 0.1, 2.0)), self._disconnect, session)

    def send_up(self, actor: SimulatedActor, message: dict[str, Any]) -> None:
        if actor.session:
            self._deliver(actor.session, "up", self._receive, actor.session, message)

    def _send_down(self, action: ToActor, leases: Sequence[LeaseName] = ()) -> None:
        if action.session in self._streams:
            self._deliver(action.session, "down", self._arrive, action, leases)

    def _deliver(self, session: int, direction: str, act: Callable[..., None], *arguments: Any) -> None:
        """In order within a direction of a stream; anything goes between streams."""
        delay = self._rng.choice((0.001, 0.001, 0.01, 0.3))
        time = max(self._last_delivery.get((session, direction), 0.0), self.now + delay)
        self._last_delivery[session, direction] = time
        self.at(time, act, *arguments)

    def _receive(self, session: int, message: dict[str, Any]) -> None:
        if self.core is None or session not in self._streams:
            return
        if self.now < self._stalled_until:
            self.at(self._stalled_until, self._receive, session, message)
            return
        self.core.report(session, self.monotonic(), **message)
        self.perform()
        lease_ids = [end[1] for end in message.get("results", ())]
        if lease_ids:
            self.after_commit(lambda: self._deliver(session, "down", self._acknowledge, session, lease_ids))

    def _acknowledge(self, session: int, lease_ids: list[int]) -> None:
        actor = self._streams.get(session)
        if actor is None or not actor.alive:
            return
        if self.now < actor.frozen_until:
            self.at(actor.frozen_until, self._acknowledge, session, lease_ids)
            return
        actor.on_acknowledge(lease_ids)

    def _arrive(self, action: ToActor, leases: Sequence[LeaseName]) -> None:
        actor = self._streams.get(action.session)
        if actor is None or not actor.alive:
            return
        if self.now < actor.frozen_until:
            self.at(actor.frozen_until, self._arrive, action, leases)
            return
        if isinstance(action, Assign):
            actor.on_assign(leases)
        elif isinstance(action, Welcome):
            actor.on_welcome(action.leases)
        elif isinstance(action, Revoke):
            actor.on_revoke(action.leases)
        elif isinstance(action, Command):
            actor.on_command(action.command)
        elif isinstance(action, Close):
            self.break_stream(actor)

    def _disconnect(self, session: int) -> None:
        if self.core is not None:
            self.core.disconnect(session, self.monotonic())
            self.perform()
