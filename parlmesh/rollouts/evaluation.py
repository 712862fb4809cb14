"""Plays whole episodes and games with a policy to measure it; only their results are kept."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from parlmesh.environments import Environments
from parlmesh.environments.two_players import Finished, Opponent
from parlmesh.errors import InvalidInput, Unavailable
from parlmesh.policies import Policy
from parlmesh.types import Array, Search

# Far beyond any registered time limit; an environment that never ends must not hang an evaluation.
_LONGEST_EVALUATION_STEPS = 100_000


def evaluation_seed(run_seed: int, updates: int) -> int:
    """A seed for other games after every update, the same wherever the policy is evaluated."""
    return int(np.random.SeedSequence([run_seed, updates + 1]).generate_state(1)[0])


def play_match(
    policy: Policy,
    opponent: Policy,
    environment: Mapping[str, Any],
    games: int,
    seed: int,
    *,
    sampled: bool = True,
    search: Search | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Finished]:
    """Plays whole games of one policy against another, one per column; neighbours start on different sides. With
    `search`, both look ahead."""
    kwargs = {**(environment.get("kwargs") or {}), "opponent_play": "sampled" if sampled else "greedy"}
    found: list[Finished] = []

    def faced(envs: Environments) -> None:
        envs.face([Opponent(1, opponent)])

    _play(
        policy,
        {**environment, "kwargs": kwargs},
        games,
        seed,
        sampled=sampled,
        search=search,
        cancelled=cancelled,
        before=faced,
        finished=found,
    )
    return found


def games_by_opponent(games: Iterable[Finished]) -> dict[str, list[int]]:
    """Won, drawn and lost games by the opponent's version, ready for JSON."""
    found: dict[str, list[int]] = {}
    for game in games:
        found.setdefault(str(game.opponent), [0, 0, 0])[1 - game.result] += 1
    return found


def evaluate(
    policy: Policy,
    environment: Mapping[str, Any],
    episodes: int,
    seed: int,
    *,
    sampled: bool = False,
    search: Search | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Array:
    """Returns [episodes] of greedy play, or of sampled play as in training: one whole episode in each environment, so
    that short ones do not count more."""
    return _play(policy, environment, episodes, seed, sampled=sampled, search=search, cancelled=cancelled)


def _play(
    policy: Policy,
    environment: Mapping[str, Any],
    episodes: int,
    seed: int,
    *,
    sampled: bool,
    search: Search | None,
    cancelled: Callable[[], bool],
    before: Callable[[Environments], None] = lambda envs: None,
    finished: list[Finished] | None = None,
) -> Array:
    """Returns [episodes]; `finished` takes the first game of every column."""
    rng = np.random.default_rng(seed)
    envs = Environments(environment, episodes)
    try:
        before(envs)
        if search is not None:
            policy = envs.searching(policy, search)
        seen, state = envs.reset(seed), policy.initial_state(episodes)
        returns = np.zeros(episodes, dtype=np.float64)
        running = np.ones(episodes, dtype=np.bool_)
        _check_finite("an observation", seen.observation, environment)
        for _ in range(_LONGEST_EVALUATION_STEPS):
            if cancelled():
                raise Unavailable("the evaluation was cancelled", reason="CANCELLED")
            if sampled:
                action, _, state = policy.act(seen.observation, rng, seen.mask, state)
            else:
                action, _, state = policy.greedy(seen.observation, seen.mask, state)
            seen, reward, terminated, truncated = envs.step(policy.to_environment(action))
            returns += np.where(running, reward, 0.0)
            _check_finite("a reward", reward[running], environment)
            running &= ~(terminated | truncated)
            _check_finite("an observation", seen.observation[running], environment)
            if not running.any():
                if finished is not None:
                    finished += envs.finished()
                return returns
            envs.rest(~running)
    finally:
        envs.close()
    raise InvalidInput(f"an episode of {environment.get('id')!r} did not end within {_LONGEST_EVALUATION_STEPS} steps")


def _check_finite(what: str, values: Array, environment: Mapping[str, Any]) -> None:
    """As in training, where such a trajectory is refused."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        name = environment.get("id")
        raise InvalidInput(f"{what} of environment {name!r} has values that are not finite", reason="NOT_FINITE")
