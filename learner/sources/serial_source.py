"""Experience without a fleet: this process collects, with the same collector and the same checks."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.errors import FailedPrecondition, InvalidInput, Unavailable
from parlmesh.exception_text import sentence
from parlmesh.policies import Policy, load_policy
from parlmesh.rollouts import Collector, Mark, collector_seed, evaluate, games_by_opponent, play_match
from parlmesh.telemetry import get_logger
from parlmesh.types import Array, Fragment, Trajectory

from ..config import TrainingConfig
from ..policies.league import League
from ..policies.registry import PolicyRegistry
from .experience_source import Evaluation, MatchResult

T = TypeVar("T")


class DaemonThread:
    """Runs one function after another. Unlike an executor's thread, it does not delay the end of the process."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[..., T], *arguments: Any) -> "Future[T]":
        """The future result of a function."""
        future: Future[T] = Future()
        self._calls.put((future, lambda: function(*arguments)))
        return future

    def close(self) -> None:
        """Ends the thread after the calls it already has."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(_stayed(function))
            except BaseException as error:
                future.set_exception(error)
            # Otherwise the result would be held until the next call.
            del call, future, function


def _stayed(function: Callable[[], T]) -> T:
    """An environment that calls sys.exit ends its run; the event loop would end the learner."""
    try:
        return function()
    except Exception:
        raise
    except BaseException as error:
        exited = RuntimeError(f"the environment tried to exit: {sentence(error)}")
        raise exited.with_traceback(error.__traceback__) from None


# The names that the first actor of a fleet has, so that a fleet of one at lag 0 sees the same games.
SERIAL_ACTOR, SERIAL_INCARNATION = "actor-0", 1

log = get_logger("parlmesh.learner")


class SerialSource:
    """Collects in a worker thread when asked."""

    def __init__(
        self,
        config: TrainingConfig,
        registry: PolicyRegistry,
        receive: Callable[[Trajectory], None],
        *,
        on_failure: Callable[[str], None],
        ending: Callable[[], bool],
        step_seconds: float,
        league: League | None = None,
    ) -> None:
        self._league = league
        self._players: dict[int, Policy] = {}
        self._config = config
        self._registry = registry
        self._receive = receive
        self._on_failure = on_failure
        self._ending = ending
        self._step_seconds = step_seconds
        self._thread = DaemonThread("collecting")
        self._hangs = False
        self._environment = config.environment.model_dump()
        self._incarnation = SERIAL_INCARNATION
        # Made in the thread that uses it: parts of some environments, such as rsshogi's boards, are bound to a thread.
        self._collector = self._thread.submit(self._new_collector).result()
        # The collector's state before each of the last trajectories.
        self._marks: deque[Mark] = deque(maxlen=config.batch_trajectories)
        self._sequence = 0
        self._refused_in_a_row = 0
        # A separate thread, so that an evaluation that never ends does not block the collector.
        self._evaluator = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluating")
        self._evaluating: Future[Array] | None = None

    @property
    def outstanding(self) -> int:
        """Nothing is in progress between two calls."""
        return 0

    async def go_on(self, tensors: Mapping[str, Array], policy: bytes, version: int) -> None:
        """Brings the environments to where they were at checkpoint `version`, or to games never played before."""
        if "starts" in tensors and await self._brought(tensors, load_policy(policy)):
            self._sequence = int(tensors["sequence"][0])
            log.info("collector_resumed", sequence=self._sequence)
            return
        if "starts" in tensors:
            log.warning("environment_not_repeatable", environment=self._config.environment.id)
        self._incarnation = SERIAL_INCARNATION + version
        await asyncio.wrap_future(self._thread.submit(self._begin_anew))

    async def request(self, count: int, min_version: int) -> None:
        """Collects now, with the newest policy."""
        for _ in range(count):
            if self._ending():
                return
            self._marks.append(self._collector.mark())
            blob = self._registry.get("").blob
            started = time.perf_counter()
            fragment = await self._collected(blob.data, self._opponents())
            self._sequence += 1
            self._deliver(
                Trajectory(
                    run_id=self._registry.run_id,
                    actor_id=SERIAL_ACTOR,
                    incarnation=self._incarnation,
                    sequence=self._sequence,
                    policy_version=blob.version,
                    fragment=fragment,
                    collect_seconds=time.perf_counter() - started,
                )
            )

    async def evaluate(self, version: int, seed: int, seconds: float) -> Evaluation:
        """Plays in a worker thread, which stops at the next step once it is no longer waited for."""
        if self._evaluating is not None and not self._evaluating.done():
            raise Unavailable("the previous evaluation hangs in a step of its environment")
        blob, episodes = self._registry.get("", version).blob, self._config.evaluation_episodes
        policy, over = load_policy(blob.data), threading.Event()
        sampled = self._config.evaluation_play == "sampled"

        def play() -> Array:
            unwanted = lambda: over.is_set() or self._ending()  # noqa: E731
            return evaluate(
                policy,
                self._config.environment.evaluated(),
                episodes,
                seed,
                sampled=sampled,
                search=self._config.search.in_evaluations(),
                cancelled=unwanted,
            )

        self._evaluating = self._evaluator.submit(_stayed, play)
        try:
            async with asyncio.timeout(seconds):
                returns = await asyncio.wrap_future(self._evaluating)
        finally:
            over.set()
        return Evaluation(version, float(returns.mean()), float(returns.min()), float(returns.max()), len(returns))

    async def match(self, version: int, opponent: int, seed: int, seconds: float) -> MatchResult:
        """Plays in a worker thread, like `evaluate`."""
        if self._evaluating is not None and not self._evaluating.done():
            raise Unavailable("the evaluation before this match hangs in a step of its environment")
        one, other = (load_policy(self._registry.get("", each).blob.data) for each in (version, opponent))
        over, games = threading.Event(), self._config.opponents.match_games

        def play() -> Array:
            unwanted = lambda: over.is_set() or self._ending()  # noqa: E731
            environment = self._config.environment.evaluated()
            search = self._config.search.in_evaluations()
            found = play_match(one, other, environment, games, seed, search=search, cancelled=unwanted)
            return np.array([game.result for game in found])

        self._evaluating = self._evaluator.submit(_stayed, play)
        try:
            async with asyncio.timeout(seconds):
                results = await asyncio.wrap_future(self._evaluating)
        finally:
            over.set()
        won, drawn, lost = (int(np.count_nonzero(results == result)) for result in (1, 0, -1))
        return MatchResult(version, opponent, won, drawn, lost)

    def tensors(self, *, untrained: int) -> dict[str, Array]:
        """The collector's state before the trajectories that have not been learnt from yet."""
        if not self._config.restart_steps:
            return {}
        mark = self._marks[-untrained] if untrained else self._collector.mark()
        found = mark.tensors()
        return {**found, "sequence": np.array([self._sequence - untrained], np.int64)} if found else {}

    def close(self) -> None:
        """Closes the environments, except one that hangs in a step."""
        if not self._hangs:
            self._collector.close()
            self._thread.submit(self._let_go)
        self._thread.close()
        self._evaluator.shutdown(wait=False, cancel_futures=True)

    def _opponents(self) -> list[Opponent]:
        """Past opponents of the next fragment's games; `_collect` adds the acting policy itself."""
        if self._league is None:
            return []
        self._league.take({"games": games_by_opponent(self._collector.finished())})
        shares = [share for share in self._league.asked() if share.version != NEWEST]
        self._players = {
            version: self._players.get(version) or load_policy(self._registry.get("", version).blob.data)
            for version, _ in shares
        }
        return [Opponent(version, self._players[version], share) for version, share in shares]

    async def _collected(self, blob: bytes, opponents: list[Opponent]) -> Fragment:
        """The next fragment, however long it takes, provided that the environments keep stepping."""
        collecting = asyncio.wrap_future(self._thread.submit(self._collect, blob, opponents))
        while True:
            stepped = self._collector.stepped
            await asyncio.wait({collecting}, timeout=self._step_seconds)
            if collecting.done():
                return collecting.result()
            if self._collector.stepped == stepped:
                self._hangs = True
                raise FailedPrecondition(
                    f"the environment took no step for {self._step_seconds:g} s; it hangs, or needs more than"
                    " experience.rollout_timeout_seconds",
                    reason="ENVIRONMENT_HANGS",
                )

    def _deliver(self, trajectory: Trajectory) -> None:
        try:
            self._receive(trajectory)
        except InvalidInput as error:
            self._marks.pop()
            # This is the environment's fault, not the run's: the queue has counted it, and a run survives a few.
            self._refused_in_a_row += 1
            log.error("trajectory_refused", reason=error.reason, error=error.message, in_a_row=self._refused_in_a_row)
            if self._refused_in_a_row >= self._config.max_bad_updates:
                served = self._registry.version
                self._on_failure(
                    f"{self._refused_in_a_row} trajectories in a row were refused: {error.message};"
                    f" version {served} is served"
                )
            return
        self._refused_in_a_row = 0

    async def _brought(self, tensors: Mapping[str, Array], policy: Policy) -> bool:
        return await asyncio.wrap_future(self._thread.submit(self._collector.go_to, tensors, policy))

    def _let_go(self) -> None:
        del self._collector

    def _begin_anew(self) -> None:
        self._collector.close()
        self._collector = self._new_collector()

    def _new_collector(self) -> Collector:
        config = self._config
        return Collector(
            self._environment,
            config.num_envs,
            collector_seed(config.seed, SERIAL_ACTOR, self._incarnation),
            restart_steps=config.restart_steps,
            repeatable=config.restart_steps > 0,
            reward_discount=config.reward_discount,
            search=config.search.in_rollouts(),
        )

    def _collect(self, blob: bytes, opponents: list[Opponent]) -> Fragment:
        policy = load_policy(blob)
        newest = 1.0 - sum(opponent.share for opponent in opponents)
        if self._league is not None and newest > 0.0 and not self._config.opponents.scripted:
            opponents = [Opponent(NEWEST, policy, newest), *opponents]
        return self._collector.collect(policy, self._config.trajectory_steps, opponents)
