"""Scripted players, as opponents for trained ones. Each chooses moves for several games at once."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .games import Games, winning_moves

Chooser: TypeAlias = Callable[[Games, Array, Array, np.random.Generator], Array]
"""Maps games, indices, legal moves [N, choices] and a generator to moves [N]."""


def drawn(allowed: Array, rng: np.random.Generator) -> Array:
    """A uniformly random allowed move per row [N, choices]."""
    counts = allowed.sum(axis=1)
    columns = np.nonzero(allowed)[1]
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    found: Array = columns[starts + (rng.random(len(allowed)) * counts).astype(np.int64)]
    return found


def random_moves(games: Games, which: Array, legal: Array, rng: np.random.Generator) -> Array:
    """A random legal move."""
    return drawn(legal, rng)


def one_ply(games: Games, which: Array, legal: Array, rng: np.random.Generator) -> Array:
    """Wins immediately if possible, otherwise moves at random."""
    winning = winning_moves(games, which)
    return drawn(np.where(winning.any(axis=1, keepdims=True), winning, legal), rng)


def win_and_block(games: Games, which: Array, legal: Array, rng: np.random.Generator) -> Array:
    """Like one_ply, but also blocks an immediate win of the other side, if the game can tell."""
    winning = winning_moves(games, which)
    threatened = getattr(games, "threatened", None)
    blocking = threatened(which) & legal if threatened is not None else np.zeros_like(legal)
    chosen = np.where(blocking.any(axis=1, keepdims=True), blocking, legal)
    return drawn(np.where(winning.any(axis=1, keepdims=True), winning, chosen), rng)


def greedy_capture(games: Games, which: Array, legal: Array, rng: np.random.Generator) -> Array:
    """Makes the most valuable capture, if the game can tell; random among equals."""
    captured = getattr(games, "captured", None)
    if captured is None:
        return drawn(legal, rng)
    worth: Array = np.where(legal, captured(which), -1.0)
    return drawn(worth == worth.max(axis=1, keepdims=True), rng)


PLAYERS: Mapping[str, Chooser] = {
    "random": random_moves,
    "one_ply": one_ply,
    "win_and_block": win_and_block,
    "greedy_capture": greedy_capture,
}


def player_of(name: str) -> Chooser:
    """The player of that name; InvalidInput lists the known players."""
    if name not in PLAYERS:
        raise InvalidInput(f"opponent must be one of {', '.join(PLAYERS)}, got {name!r}", reason="OPPONENT")
    return PLAYERS[name]
