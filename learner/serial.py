"""Experience without a fleet: this process collects, with the same collector and the same checks."""

import asyncio
from collections.abc import Callable

from parlmesh.policies import load_policy
from parlmesh.rollouts import Collector, collector_seed, evaluate, evaluation_seed
from parlmesh.types import Fragment, Trajectory

from .config import TrainingConfig
from .registry import PolicyRegistry
from .run import Evaluation

# The names under which the first actor of a fleet collects: a fleet of one at lag 0 sees the same games.
SERIAL_ACTOR, SERIAL_INCARNATION = "actor-0", 1


class SerialSource:
    """Collects in a worker thread when asked."""

    def __init__(
        self, config: TrainingConfig, registry: PolicyRegistry, receive: Callable[[Trajectory], None], incarnation: int
    ) -> None:
        self._config = config
        self._registry = registry
        self._receive = receive
        self._incarnation = incarnation
        self._environment = config.environment.model_dump()
        seed = collector_seed(config.seed, SERIAL_ACTOR, incarnation)
        self._collector = Collector(self._environment, config.num_envs, seed)
        self._sequence = 0

    @property
    def outstanding(self) -> int:
        """Nothing is under way between two calls."""
        return 0

    async def request(self, count: int, min_version: int) -> None:
        """Collects now, with the newest policy."""
        for _ in range(count):
            blob = self._registry.get("").blob
            fragment = await asyncio.to_thread(self._collect, blob.data)
            self._sequence += 1
            self._receive(
                Trajectory(
                    run_id=self._registry.run_id,
                    actor_id=SERIAL_ACTOR,
                    incarnation=self._incarnation,
                    sequence=self._sequence,
                    policy_version=blob.version,
                    fragment=fragment,
                )
            )

    async def evaluate(self, version: int) -> Evaluation:
        """Greedy play in a worker thread."""
        blob = self._registry.get("", version).blob
        seed = evaluation_seed(self._config.seed, version)
        episodes = self._config.evaluation_episodes
        returns = await asyncio.to_thread(evaluate, load_policy(blob.data), self._environment, episodes, seed)
        return Evaluation(version, float(returns.mean()), float(returns.min()), float(returns.max()), len(returns))

    def close(self) -> None:
        """Frees the environments."""
        self._collector.close()

    def _collect(self, blob: bytes) -> Fragment:
        return self._collector.collect(load_policy(blob), self._config.fragment_steps)
