"""The games' gymnasium ids, including PettingZoo's games."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium

from .environment import GameEnvironments
from .games import Games

# The games check their own moves.
_CHECKED: dict[str, Any] = {"disable_env_checker": True, "order_enforce": False}


def _connect_four(count: int, **options: Any) -> Games:
    from .games.connect_four import ConnectFour

    return ConnectFour(count, **options)


def _tictactoe(count: int, **options: Any) -> Games:
    from .games.tictactoe import TicTacToe

    return TicTacToe(count, **options)


def _shogi(count: int, **options: Any) -> Games:
    from .shogi.games import Shogi

    return Shogi(count, **options)


GAMES: dict[str, Callable[..., Games]] = {
    "connect_four": _connect_four,
    "shogi": _shogi,
    "tictactoe": _tictactoe,
}
"""Makers by game name; each makes a given number of games."""

IDS = {f"games/{name}": make for name, make in GAMES.items()}


def register_envs() -> None:
    """Registers the ids; repeated calls are harmless."""
    for name, make in IDS.items():
        _register(name, make)


def adopt(name: str) -> str:
    """Registers one of PettingZoo's games, module:game, and returns its id."""
    from .games.petting_zoo import PettingZooGames

    known = "pettingzoo/" + name.partition(":")[2]
    _register(known, partial(PettingZooGames, name=name))
    return known


def _register(name: str, make: Callable[..., Games]) -> None:
    if name not in gymnasium.registry:
        vector = partial(GameEnvironments, make=make)
        gymnasium.register(id=name, vector_entry_point=vector, **_CHECKED)
