"""Two versions of a run against each other: whole games, alternating colours, openings chosen by the seed."""

from typing import Any

from pydantic import Field

from parlmesh.handlers import Context, Result, RunsIn
from parlmesh.rollouts import play_match
from parlmesh.types import Array

from ..learner.policy_client import PolicyLink
from .evaluate import PlayParameters, cancellable
from .parameters import search_of


class MatchParameters(PlayParameters):
    """Who plays whom."""

    opponent: int = Field(ge=1, lt=1 << 53)
    games: int = Field(default=100, ge=1, le=10_000)
    sampled: bool = True


class Match:
    """The kind `match`: the same versions, seed and environment give the same games on every actor."""

    kind = "match"
    runs_in = RunsIn.THREAD

    def __init__(self, policies: PolicyLink) -> None:
        self._policies = policies

    def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Context) -> Result:
        """{run_id, environment, version, opponent, games, seed, sampled, search, run_uid}"""
        wanted = MatchParameters.of(self.kind, parameters)
        held, other = (
            self._policies.exact_policy(wanted.run_id, version, context, wanted.run_uid)
            for version in (wanted.version, wanted.opponent)
        )
        with cancellable(context):
            games = play_match(
                held.policy,
                other.policy,
                wanted.environment,
                wanted.games,
                wanted.seed,
                sampled=wanted.sampled,
                search=search_of(wanted.search),
                cancelled=lambda: context.cancelled,
            )
        ends: dict[str, int] = {}
        for game in games:
            ends[game.end] = ends.get(game.end, 0) + 1
        return Result(
            {
                "version": held.version,
                "digest": held.digest.hex(),
                "opponent": other.version,
                "opponent_digest": other.digest.hex(),
                "won": sum(game.result == 1 for game in games),
                "drawn": sum(game.result == 0 for game in games),
                "lost": sum(game.result == -1 for game in games),
                "ends": ends,
                "mean_plies": sum(game.plies for game in games) / max(1, len(games)),
            }
        )
