"""The handler `selfplay_collect`: a fragment of self-play for programs with their own training loop (ParallelManager).

It runs in its slot's process, so that a game that hangs can be killed and replaced.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from parlmesh.environments.two_players import NEWEST, Opponent
from parlmesh.errors import InvalidInput
from parlmesh.handlers import Context, Result
from parlmesh.plugins import load_plugins
from parlmesh.policies import Policy, load_policy
from parlmesh.rollouts import Collector, games_by_opponent
from parlmesh.types import Array

KIND = "selfplay_collect"


class CollectGames:
    """Keeps its games and the newest policy between tasks."""

    kind = KIND
    runs_in = "process"

    def __init__(self) -> None:
        load_plugins(["selfplay"])
        self._key = ""
        self._collector: Collector | None = None
        self._digest = ""
        self._policy: Policy | None = None

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """Parameters: environment, num_envs, steps, seed, policy (a file on this machine), digest."""
        policy = self._newest(str(parameters["policy"]), str(parameters["digest"]))
        key = json.dumps([parameters[name] for name in ("environment", "num_envs", "seed")], sort_keys=True)
        if self._collector is None or key != self._key:
            # Mix in the task's id: a replacement process must not repeat its predecessor's games.
            entropy = [int(parameters["seed"]), int.from_bytes(hashlib.sha256(context.task_id.encode()).digest()[:8])]
            seed = np.random.SeedSequence(entropy)
            self._collector = Collector(parameters["environment"], int(parameters["num_envs"]), seed)
            self._key = key
        try:
            fragment = self._collector.collect(policy, int(parameters["steps"]), [Opponent(NEWEST, policy)])
        except BaseException:
            # Drop games that failed in the middle of a move.
            self._collector = None
            raise
        told = {"steps": fragment.valid_steps, "games": games_by_opponent(self._collector.finished())}
        return Result(told, dict(fragment.columns))

    def _newest(self, file: str, digest: str) -> Policy:
        if self._policy is None or digest != self._digest:
            data = Path(file).read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                raise InvalidInput(f"the policy in {file} does not have the digest {digest[:12]}…", reason="POLICY")
            self._policy, self._digest = load_policy(data), digest
        return self._policy
