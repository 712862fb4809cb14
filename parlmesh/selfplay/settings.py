"""What a game's environment may be told: `environment.kwargs` of a run."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.errors import InvalidInput


class GameSettings(Config):
    """Everything that is not a rule of the game. What changes a game's start or end is told apart in its record."""

    opponent: str = "random"
    """Who sits on the other side when nobody else is named, as in evaluations: a player of `players`."""
    opponent_play: Literal["sampled", "greedy"] = "sampled"
    """How versions on the other side choose."""
    seat: Literal["alternate", "first", "second"] = "alternate"
    """Which side learns; alternate changes it from game to game."""
    opening_plies: int = Field(default=0, ge=0, le=1_000)
    """Most plies of a game's start that are drawn at random."""
    opening_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Games that start so; the others start as the rules have it."""
    at_limit: Literal["draw", "truncate", "material"] = "draw"
    """What the move limit means: a draw, a truncation whose value is estimated, or the share of material as reward."""
    shaping: float = Field(default=0.0, ge=0.0, le=10.0)
    """Reward for material that was won since the last own move; results leave it out."""
    finisher: Literal["none", "learner", "opponent", "both"] = "none"
    """Who wins at once where that is possible, whatever was chosen. For evaluations: what is learnt from is chosen."""
    most_opponents: int = Field(default=8, ge=1, le=1_024)
    """Versions held at once by one vector of games; a game keeps its opponent to its end."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Rules that the game itself leaves open, such as shogi's move limit."""


def read_settings(given: dict[str, Any]) -> GameSettings:
    """InvalidInput names the first setting that cannot be."""
    try:
        return GameSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"game setting {where}: {first['msg']}, got {first.get('input')!r}"
        raise InvalidInput(message, reason="ENVIRONMENT") from error
