"""Whether a policy's games are shogi: cshogi, which is not part of the product, checks every move."""

import importlib.util
from typing import Any

import numpy as np

from parlmesh.policies import Policy
from parlmesh.selfplay.games import Games, Verdict
from parlmesh.selfplay.scripted_players import PLAYERS, Chooser
from parlmesh.selfplay.shogi.games import Shogi
from parlmesh.types import Array


class WrittenShogi(Shogi):
    """Keeps the moves of every game, in USI, and the result of the last one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.lines: list[list[str]] = [[] for _ in range(count)]
        self.verdicts = np.zeros(count, np.int8)

    def play(self, which: Array, moves: Array) -> Array:
        """By the rules."""
        for index, move in zip(which.tolist(), moves.tolist(), strict=True):
            self.lines[index].append(self.usi(index, move))
        self.verdicts[which] = verdicts = super().play(which, moves)
        return verdicts


def contest(games: Games, ours: Chooser, theirs: Chooser, rng: np.random.Generator) -> int:
    """Plays all games to their ends, sides alternating; returns how many the first player wins."""
    games.start(running := np.arange(games.count), rng)
    wins = 0
    while len(running):
        # The first player starts the even-numbered games; all games are at the same ply.
        own = running % 2 == int(games.plies(running[:1])[0]) % 2
        moves, legal = np.zeros(len(running), np.int64), games.legal(running)
        for mine, chooser in ((own, ours), (~own, theirs)):
            if mine.any():
                moves[mine] = chooser(games, running[mine], legal[mine], rng)
        verdicts = games.play(running, moves)
        wins += int(((verdicts == Verdict.WON) & own).sum() + ((verdicts == Verdict.LOST) & ~own).sum())
        running = running[verdicts == Verdict.GOES_ON]
    return wins


def refereed(policy: Policy, count: int) -> dict[str, Any]:
    """`count` sampled games against a random player, and as many against itself."""
    if importlib.util.find_spec("cshogi") is None:
        return {"referee": "cshogi is not installed"}

    def chosen(games: Games, which: Array, legal: Array, rng: np.random.Generator) -> Array:
        found: Array = policy.act(games.planes(which), rng, legal)[0]
        return found

    found = {"refereed_games": 0, "refereed_moves": 0, "illegal_moves": 0, "disputed_mates": 0}
    for other in (PLAYERS["random"], chosen):
        games = WrittenShogi(count)
        contest(games, chosen, other, np.random.default_rng(count))
        for line, verdict in zip(games.lines, games.verdicts.tolist(), strict=True):
            illegal, mated = judged(line)
            found["refereed_games"] += 1
            found["refereed_moves"] += len(line)
            found["illegal_moves"] += illegal
            # A game may also be won by declaration, but then the loser has moves left.
            found["disputed_mates"] += mated and verdict != Verdict.WON
    return found


def judged(line: list[str]) -> tuple[int, bool]:
    """Number of illegal moves, at most 1 because it stops at the first, and whether the last move mates."""
    import cshogi

    board = cshogi.Board()
    for usi in line:
        if usi not in {cshogi.move_to_usi(move) for move in board.legal_moves}:
            return 1, False
        board.push_usi(usi)
    return 0, bool(board.is_game_over())
