"""Collecting experience: steps environments with the newest policy and uploads each fragment for a receipt."""

import concurrent.futures
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.rollouts import Collector, collector_seed
from parlmesh.types import Array
from parlmesh.wire import trajectory_to_proto

from ..learner_link import LearnerLink
from ..metrics import ActorMetrics
from ..uploads import Receipt
from .parameters import Parameters, parse_parameters
from .protocol import Context, HandlerError, Result, RunsIn

# Uploads that may be under way while the next fragment is collected.
_OVERLAP = 2


class RolloutParameters(Parameters):
    """What to collect."""

    run_id: str = Field(min_length=1, max_length=200)
    environment: dict[str, Any]
    num_envs: int = Field(ge=1, le=65_536)
    fragment_steps: int = Field(ge=1, le=1_000_000)
    fragments: int = Field(default=1, ge=1, le=1_000_000)
    seed: int = Field(default=0, ge=0, lt=1 << 53)
    min_policy_version: int = Field(default=1, ge=0, lt=1 << 53)

    @property
    def collector_key(self) -> str:
        """Tasks with the same key go on with each other's episodes."""
        return json.dumps([self.run_id, self.environment, self.num_envs, self.seed], sort_keys=True)


@dataclass(slots=True)
class _Kept:
    key: str
    collector: Collector


@dataclass(slots=True)
class _Tally:
    """What one task has collected so far."""

    steps: int = 0
    episodes: int = 0
    policy_version: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)


class Rollout:
    """The kind `rollout`. Each slot keeps its environments from task to task, so that episodes go on."""

    kind = "rollout"
    runs_in = RunsIn.THREAD

    def __init__(self, learner: LearnerLink, *, actor_id: str, incarnation: int, metrics: ActorMetrics) -> None:
        self._learner = learner
        self._actor_id = actor_id
        self._incarnation = incarnation
        self._metrics = metrics
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._made: Counter[tuple[int, int]] = Counter()
        self._resets = 0

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{run_id, environment, num_envs, fragment_steps, fragments, seed, min_policy_version}"""
        wanted = parse_parameters(RolloutParameters, self.kind, parameters)
        tally = _Tally()
        uploads: deque[concurrent.futures.Future[Receipt]] = deque()
        with self._collector(wanted, context.slot) as collector:
            for _ in range(wanted.fragments):
                context.check()
                uploads.append(self._collect(collector, wanted, context, tally))
                while len(uploads) > _OVERLAP:
                    self._settle(uploads.popleft(), context, tally)
            while uploads:
                self._settle(uploads.popleft(), context, tally)
        return Result(
            {
                "steps": tally.steps,
                "episodes": tally.episodes,
                "policy_version": tally.policy_version,
                "accepted": tally.accepted,
                "refused": dict(tally.refused),
            }
        )

    def reset(self) -> None:
        """Closes the environments; those in use are closed when their task ends."""
        with self._lock:
            self._resets += 1
            kept, self._kept = self._kept, {}
        for entry in kept.values():
            entry.collector.close()

    def _collect(
        self, collector: Collector, wanted: RolloutParameters, context: Context, tally: _Tally
    ) -> "concurrent.futures.Future[Receipt]":
        asked = time.perf_counter()
        held = self._learner.policy(wanted.run_id, wanted.min_policy_version, context)
        started = time.perf_counter()
        fragment = collector.collect(held.policy, wanted.fragment_steps)
        self._metrics.policy_wait_seconds.inc(started - asked)
        self._metrics.collect_seconds.inc(time.perf_counter() - started)
        steps = fragment.valid_steps
        self._metrics.environment_steps.inc(steps)
        self._metrics.episodes.inc(len(fragment.episodes))
        tally.steps += steps
        tally.episodes += len(fragment.episodes)
        tally.policy_version = held.version
        trajectory = trajectory_to_proto(
            fragment,
            run_id=wanted.run_id,
            actor_id=self._actor_id,
            incarnation=self._incarnation,
            sequence=self._learner.next_sequence(),
            policy_version=held.version,
            task_id=context.task_id,
        )
        return self._learner.upload(trajectory)

    def _settle(self, upload: "concurrent.futures.Future[Receipt]", context: Context, tally: _Tally) -> None:
        asked = time.perf_counter()
        receipt = self._learner.wait(upload, context)
        self._metrics.receipt_wait_seconds.inc(time.perf_counter() - asked)
        error = receipt.error
        if error is None:
            tally.accepted += 1
        elif isinstance(error, FailedPrecondition):
            # Late or unwanted experience is no fault of the task: the submitter sees how much was refused, and why.
            tally.refused[error.reason] += 1
        else:
            retryable = not isinstance(error, InvalidInput)
            text = f"the learner refused a trajectory: {error.message}"
            raise HandlerError(text, retryable=retryable, reason=error.reason)

    @contextmanager
    def _collector(self, wanted: RolloutParameters, slot: int) -> Iterator[Collector]:
        """The slot's environments, taken out while in use and put back unless the task failed half-way."""
        with self._lock:
            entry, resets = self._kept.pop(slot, None), self._resets
        if entry is not None and entry.key != wanted.collector_key:
            entry.collector.close()
            entry = None
        if entry is None:
            seed = self._seed(wanted.seed, slot)
            entry = _Kept(wanted.collector_key, Collector(wanted.environment, wanted.num_envs, seed))
        try:
            yield entry.collector
        except BaseException:
            entry.collector.close()
            raise
        with self._lock:
            # Another thread may have taken the slot over after this one was abandoned.
            keep = resets == self._resets and slot not in self._kept
            if keep:
                self._kept[slot] = entry
        if not keep:
            entry.collector.close()

    def _seed(self, run_seed: int, slot: int) -> np.random.SeedSequence:
        """Environments made anew within one life of the actor never repeat games either."""
        with self._lock:
            made = self._made[run_seed, slot]
            self._made[run_seed, slot] += 1
        seed = collector_seed(run_seed, self._actor_id, self._incarnation, slot)
        return np.random.SeedSequence(seed.entropy, spawn_key=(made,)) if made else seed
