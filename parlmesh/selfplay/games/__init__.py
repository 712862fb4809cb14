"""The games and their common interface."""

from .game import OTHER_SIDE, WORTH, Games, Verdict, winning_moves

__all__ = ["OTHER_SIDE", "WORTH", "Games", "Verdict", "winning_moves"]
