"""Collecting experience: steps environments with the newest policy and uploads each fragment for a receipt."""

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import AliasChoices, Field

from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.handlers import Context, RunsIn, Tail
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.telemetry import Waiting, get_logger
from parlmesh.types import Array, Trajectory
from parlmesh.wire import trajectory_to_request

from ..learner.policy_cache import HeldPolicy
from ..learner.policy_client import PolicyLink
from ..learner.trajectory_uploads import Uploads
from ..learner.unconfirmed_uploads import UnconfirmedUploads, Upload
from ..metrics import ActorMetrics
from .parameters import Parameters, SearchParameters, search_of
from .rollout_tally import Tally

log = get_logger("parlmesh.actor")


class OpponentParameters(Parameters):
    """A version that plays the other side of a game; 0 = the acting one."""

    version: int = Field(ge=0, lt=1 << 53)
    share: float = Field(gt=0.0, le=1.0)


class RolloutParameters(Parameters):
    """The parameters of a rollout."""

    run_id: str = Field(min_length=1, max_length=200)
    environment: dict[str, Any]
    num_envs: int = Field(ge=1, le=65_536)
    # A learner of the previous release uses the older name.
    trajectory_steps: int = Field(
        ge=1, le=1_000_000, validation_alias=AliasChoices("trajectory_steps", "fragment_steps")
    )
    fragments: int = Field(default=1, ge=1, le=1_000_000)
    seed: int = Field(default=0, ge=0, lt=1 << 53)
    min_policy_version: int = Field(default=1, ge=0, lt=1 << 53)
    restart_steps: int = Field(default=0, ge=0, lt=1 << 53)
    run_uid: str = Field(default="", max_length=200)
    reward_discount: float | None = Field(default=None, ge=0.0, le=1.0)
    opponents: tuple[OpponentParameters, ...] = Field(default=(), max_length=64)
    search: SearchParameters | None = None

    @property
    def collector_key(self) -> str:
        """Tasks with the same key continue each other's episodes."""
        collected = [self.run_id, self.environment, self.num_envs, self.seed, self.restart_steps, self.reward_discount]
        return json.dumps([*collected, self.search and self.search.model_dump()], sort_keys=True)


@dataclass(slots=True)
class _Kept:
    key: str
    collector: Collector


class Rollout:
    """The kind `rollout`. Each slot keeps its environments from task to task, so that episodes continue."""

    kind = "rollout"
    runs_in = RunsIn.THREAD

    def __init__(
        self,
        policies: PolicyLink,
        uploads: Uploads,
        *,
        actor_id: str,
        incarnation: Callable[[], int],
        metrics: ActorMetrics,
    ) -> None:
        self._policies = policies
        self._uploads = uploads
        self._actor_id = actor_id
        self._incarnation = incarnation
        self._metrics = metrics
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._made: Counter[tuple[int, int]] = Counter()
        self._resets = 0
        self._waiting = Waiting()
        # When each slot's last fragment was collected.
        self._ended: dict[int, float] = {}
        self._unconfirmed = UnconfirmedUploads()

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Tail:
        """{run_id, environment, num_envs, trajectory_steps, fragments, seed, …}: RolloutParameters"""
        wanted = RolloutParameters.of(self.kind, parameters)
        tally = Tally()
        uploads: deque[Upload] = deque()
        with self._collector(wanted, context.slot) as collector:
            for _ in range(wanted.fragments):
                context.check()
                self._metrics.receipt_wait_seconds.inc(self._unconfirmed.make_room(context))
                while uploads and uploads[0].done():
                    tally.add(uploads.popleft().result())
                upload = self._collect(collector, wanted, context, tally)
                uploads.append(upload)
                self._unconfirmed.add(context.slot, upload)
        return Tail(lambda: tally.settled(uploads))

    def reset(self) -> None:
        """Closes the environments; those in use are closed when their task ends."""
        with self._lock:
            self._resets += 1
            kept, self._kept = self._kept, {}
        for entry in kept.values():
            _close(entry.collector)

    def _collect(self, collector: Collector, wanted: RolloutParameters, context: Context, tally: Tally) -> Upload:
        asked = time.perf_counter()
        held = self._policies.policy(wanted.run_id, wanted.min_policy_version, context, wanted.run_uid)
        opponents = self._opponents(wanted, held, context, tally)
        # Read before the clock, because an abandoned thread may still end a fragment of this slot.
        free_since = self._ended.get(context.slot)
        started = time.perf_counter()
        fragment = collector.collect(held.policy, wanted.trajectory_steps, opponents)
        tally.games += collector.finished()
        ended = time.perf_counter()
        collect_seconds, waited_seconds = ended - started, 0.0 if free_since is None else started - free_since
        self._ended[context.slot] = ended
        self._metrics.policy_wait_seconds.inc(started - asked)
        self._metrics.collect_seconds.inc(collect_seconds)
        self._metrics.idle_ratio.set(self._waiting.add(ended, waited_seconds, collect_seconds))
        steps = fragment.valid_steps
        self._metrics.environment_steps.inc(steps)
        self._metrics.episodes.inc(len(fragment.episodes))
        tally.steps += steps
        tally.episodes += len(fragment.episodes)
        tally.policy_version = held.version
        trajectory = Trajectory(
            run_id=wanted.run_id,
            actor_id=self._actor_id,
            incarnation=self._incarnation(),
            sequence=self._uploads.next_sequence(),
            policy_version=held.version,
            fragment=fragment,
            task_id=context.task_id,
            collect_time=time.time(),
            collect_seconds=collect_seconds,
            waited_seconds=waited_seconds,
            run_uid=held.run_uid,
        )
        return self._uploads.begin(trajectory_to_request(trajectory))

    def _opponents(self, wanted: RolloutParameters, held: HeldPolicy, context: Context, tally: Tally) -> list[Opponent]:
        """The versions that were asked for, each exactly; the task's result names their digests."""
        found = []
        for each in wanted.opponents:
            other = held
            if each.version != NEWEST:
                other = self._policies.exact_policy(wanted.run_id, each.version, context, wanted.run_uid)
                tally.opponents[str(each.version)] = other.digest.hex()
            found.append(Opponent(each.version, other.policy, each.share))
        return found

    @contextmanager
    def _collector(self, wanted: RolloutParameters, slot: int) -> Iterator[Collector]:
        """The slot's environments, taken out while in use and put back unless the task failed."""
        with self._lock:
            entry, resets = self._kept.pop(slot, None), self._resets
        if entry is not None and entry.key != wanted.collector_key:
            _close(entry.collector)
            entry = None
        if entry is None:
            seed = self._seed(wanted.seed, slot)
            collector = Collector(
                wanted.environment,
                wanted.num_envs,
                seed,
                restart_steps=wanted.restart_steps,
                reward_discount=wanted.reward_discount,
                search=search_of(wanted.search),
            )
            entry = _Kept(wanted.collector_key, collector)
        try:
            yield entry.collector
        except BaseException:
            _close(entry.collector)
            raise
        with self._lock:
            # Another thread may have taken the slot over after this one was abandoned.
            keep = resets == self._resets and slot not in self._kept
            if keep:
                self._kept[slot] = entry
        if not keep:
            _close(entry.collector)

    def _seed(self, run_seed: int, slot: int) -> np.random.SeedSequence:
        """A new seed each time, so that environments recreated within one incarnation never repeat games."""
        with self._lock:
            made = self._made[run_seed, slot]
            self._made[run_seed, slot] += 1
        seed = collector_seed(run_seed, self._actor_id, self._incarnation(), slot)
        return np.random.SeedSequence(seed.entropy, spawn_key=(made,)) if made else seed


def _close(collector: Collector) -> None:
    """Closes environments; an error in that fails no task and hides no earlier error."""
    try:
        collector.close()
    except Exception as error:
        log.exception("environments_not_closed", error)
