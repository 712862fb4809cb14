"""Games as gymnasium environments: an environment is one side of a game, and a step is its move and the reply.

The other side is part of the environment, so every algorithm for environments can train on games. A trajectory belongs
to one player, with its own view, sign, mask and outcome; it does not contain the other side's observations or moves.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from parlmesh.environments.two_players import Finished, Opponent
from parlmesh.errors import InvalidInput
from parlmesh.policies import Policy
from parlmesh.types import ACTION_MASK, Array, Search

from .games import OTHER_SIDE, WORTH, Games, Verdict, winning_moves
from .opponent_seats import RESIGNS, Seats
from .scripted_players import drawn
from .search import Looking, Searcher
from .settings import read_settings

Maker = Callable[..., Games]

_ENDS = {Verdict.WON: "rules", Verdict.LOST: "rules", Verdict.DRAWN: "draw", Verdict.LIMIT: "limit"}
# Bounds results that are never fetched.
_MOST_RESULTS = 100_000


class GameEnvironments(VectorEnv):
    """`num_envs` games made by `make`, each with one learning side."""

    def __init__(self, num_envs: int, make: Maker, **settings: Any) -> None:
        settings.pop("render_mode", None)
        if num_envs < 1:
            raise InvalidInput(f"num_envs must be >= 1, got {num_envs}", reason="ENVIRONMENT")
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self.num_envs = num_envs
        self.settings = read = read_settings(settings)
        try:
            self.games = make(num_envs, **read.options)
        except TypeError as error:
            raise InvalidInput(f"game setting options: {error}", reason="ENVIRONMENT") from error
        self.seats = Seats(num_envs, read.opponent, greedy=read.opponent_play == "greedy", most=read.most_opponents)
        games = self.games
        largest: Any = 255 if games.dtype == "uint8" else np.inf
        seen = spaces.Box(0, largest, games.shape, np.dtype(games.dtype).type)
        self.single_observation_space = spaces.Dict(
            {"observation": seen, ACTION_MASK: spaces.MultiBinary(games.choices)}
        )
        self.single_action_space = spaces.Discrete(games.choices)
        self.observation_space, self.action_space = self.single_observation_space, self.single_action_space
        self._results: list[Finished] = []
        self.lost_results = 0
        self._clear(np.random.default_rng(0))

    def _clear(self, rng: np.random.Generator) -> None:
        count = self.num_envs
        self._rng = rng
        self._over = np.zeros(count, np.bool_)
        self._resting = np.zeros(count, np.bool_)
        self._opening = np.zeros(count, np.int64)
        self._material = np.zeros(count, np.float32)
        # Games that a finisher won with a move that was not chosen.
        self._by_finisher = np.zeros(count, np.bool_)
        # For each column, 0 when the learning side moves first. Neighbouring columns alternate.
        self._seat = np.arange(count) % 2
        if self.settings.seat != "alternate":
            self._seat[:] = self.settings.seat == "second"

    def face(self, opponents: Sequence[Opponent]) -> None:
        """Sets the opponents of new games; running games keep theirs."""
        self.seats.offer(opponents)

    def rest(self, resting: Array) -> None:
        """Sets columns [E] that neither move nor restart until all are reset."""
        self._resting = resting.copy()

    def searching(self, policy: Policy, search: Search) -> Looking:
        """The policy with search in these games; opposing versions search from now on, too."""
        if self.seats.searcher is None or self.seats.searcher.settings != search:
            self.seats.searcher, self._searcher = Searcher(search), Searcher(search)
        return Looking(policy, self._searcher, self.games, lambda: np.flatnonzero(~self._over & ~self._resting))

    def finished(self) -> list[Finished]:
        """Games that ended since the last call."""
        results, self._results = self._results, []
        return results

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts new games in all columns."""
        self._clear(np.random.default_rng(seed))
        self._begin(np.arange(self.num_envs))
        return self._seen(), {}

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """The learning sides move, the others reply; games that ended in the previous step only restart."""
        reward = np.zeros(self.num_envs, np.float32)
        verdict = np.zeros(self.num_envs, np.int8)
        again, live = (np.flatnonzero(each & ~self._resting) for each in (self._over, ~self._over))
        if len(live):
            verdict[live] = self._move(live, np.asarray(actions)[live], finishing=("learner", "both"))
            replying = live[verdict[live] == Verdict.GOES_ON]
            resigned = self._reply(replying, verdict)
            reward[live] = WORTH[verdict[live]]
            self._settle(live, verdict, reward, resigned)
        if len(again):
            # Seats change from game to game.
            if self.settings.seat == "alternate":
                self._seat[again] = 1 - self._seat[again]
            self._begin(again)
        limit = verdict == Verdict.LIMIT
        cut = limit if self.settings.at_limit == "truncate" else np.zeros_like(limit)
        over = verdict != Verdict.GOES_ON
        self._over = over | (self._over & self._resting)
        return self._seen(), reward, over & ~cut, cut, {}

    def close_extras(self, **kwargs: Any) -> None:
        """There is nothing to close."""

    def _begin(self, which: Array) -> None:
        """Starts games, plays their openings, and the first move if the other side moves first."""
        self.games.start(which, self._rng)
        self.seats.seat(which, self._rng)
        self._opening[which] = 0
        if self.settings.opening_plies:
            self._play_openings(which)
        # The parity of the plies tells which side is to move.
        theirs = which[self.games.plies(which) % 2 != self._seat[which]]
        verdict = np.zeros(self.num_envs, np.int8)
        self._reply(theirs, verdict, resigning=False)
        ended = theirs[verdict[theirs] != Verdict.GOES_ON]
        if len(ended):
            # The reply to an opening ended the game before the learning side chose a move: discard it.
            self._begin(ended)
        self._material[which] = self.games.material(which)

    def _play_openings(self, which: Array) -> None:
        late = which[self._rng.random(len(which)) < self.settings.opening_share]
        self._opening[late] = self._rng.integers(self.settings.opening_plies + 1, size=len(late))
        for ply in range(int(self._opening[late].max(initial=0))):
            moving = late[self._opening[late] > ply]
            verdicts = self.games.play(moving, drawn(self.games.legal(moving), self._rng))
            failed = moving[verdicts != Verdict.GOES_ON]
            if len(failed):
                # An opening must not decide the game: start these from the rules' position.
                self.games.start(failed, self._rng)
                self._opening[failed] = 0

    def _move(self, which: Array, moves: Array, *, finishing: tuple[str, str]) -> Array:
        if self.settings.finisher in finishing:
            winning = winning_moves(self.games, which)
            unseen = winning.any(axis=1) & ~winning[np.arange(len(which)), moves]
            moves = np.where(unseen, winning.argmax(axis=1), moves)
            self._by_finisher[which] = unseen
        return self.games.play(which, moves)

    def _reply(self, which: Array, verdict: Array, *, resigning: bool = True) -> Array:
        """Plays the other sides' moves, sets the learning sides' `verdict` [E], and returns the resigned columns."""
        if not len(which):
            return which
        moves = self.seats.choose(self.games, which, self._rng)
        resigned = which[moves == RESIGNS] if resigning else which[:0]
        verdict[resigned] = Verdict.WON
        staying = moves != RESIGNS
        which, moves = which[staying], moves[staying]
        if len(which):
            verdict[which] = OTHER_SIDE[self._move(which, moves, finishing=("opponent", "both"))]
        return resigned

    def _settle(self, live: Array, verdict: Array, reward: Array, resigned: Array) -> None:
        """Adds shaping and the value of the limit to the reward; the record has only the result."""
        settings = self.settings
        if settings.shaping or settings.at_limit == "material":
            material = self._own_material(live, verdict)
            reward[live] += settings.shaping * (material - self._material[live])
            self._material[live] = material
            if settings.at_limit == "material":
                reward[live] += np.where(verdict[live] == Verdict.LIMIT, material, 0.0).astype(np.float32)
        gave_up = set(resigned.tolist())
        for column in live[verdict[live] != Verdict.GOES_ON].tolist():
            if len(self._results) >= _MOST_RESULTS:
                self.lost_results += 1
                continue
            found = Verdict(int(verdict[column]))
            self._results.append(
                Finished(
                    opponent=self.seats.version(column),
                    result=int(WORTH[found]),
                    end=self._end(column, found, resigned=column in gave_up),
                    plies=int(self.games.plies(np.array([column]))[0]),
                    seat=int(self._seat[column]),
                    opening=int(self._opening[column]),
                )
            )

    def _end(self, column: int, found: Verdict, *, resigned: bool) -> str:
        if resigned:
            return "resignation"
        return "finisher" if self._by_finisher[column] else _ENDS[found]

    def _own_material(self, which: Array, verdict: Array) -> Array:
        """The learning side's material, whichever side is to move."""
        found: Array = self.games.material(which) * np.where(self._own_turn(which), 1.0, -1.0).astype(np.float32)
        return found

    def _own_turn(self, which: Array) -> Array:
        found: Array = self.games.plies(which) % 2 == self._seat[which]
        return found

    def _seen(self) -> dict[str, Array]:
        """The learning side's observation; it is not to move if its own move ended the game."""
        every = np.arange(self.num_envs)
        own = self._own_turn(every)
        observation = self.games.planes(every)
        if not own.all():
            observation[~own] = self.games.planes(every[~own], waiting=True)
        mask = self.games.legal(every)
        # An ended game has no legal moves, and any choice then only starts the next one.
        mask[~mask.any(axis=1) | ~own] = True
        return {"observation": observation, ACTION_MASK: mask}
