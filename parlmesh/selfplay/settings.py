"""Settings of a game's environment: `environment.kwargs` of a run."""

from typing import Any, Literal

from pydantic import Field, ValidationError

from parlmesh.config import Config
from parlmesh.errors import InvalidInput


class GameSettings(Config):
    """Everything that is not a rule of the game. The record of a game shows settings that changed its start or end."""

    opponent: str = "random"
    """The scripted opponent when no other is given, as in evaluations."""
    opponent_play: Literal["sampled", "greedy"] = "sampled"
    """How opposing policy versions choose moves."""
    seat: Literal["alternate", "first", "second"] = "alternate"
    """Which side learns; alternate switches after every game."""
    opening_plies: int = Field(default=0, ge=0, le=1_000)
    """Most random plies at the start of a game."""
    opening_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of games with a random opening; the others start from the rules' position."""
    at_limit: Literal["draw", "truncate", "material"] = "draw"
    """The meaning of the move limit: a draw, a truncation with an estimated value, or the material balance as reward.
    """
    shaping: float = Field(default=0.0, ge=0.0, le=10.0)
    """Reward for material won since the last own move; not part of results."""
    finisher: Literal["none", "learner", "opponent", "both"] = "none"
    """Which side plays an immediate win instead of its chosen move. For evaluations: training needs chosen moves."""
    most_opponents: int = Field(default=8, ge=1, le=1_024)
    """Most versions held at once by one vector of games; a game keeps its opponent to the end."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Rules that the game leaves open, such as shogi's move limit."""


def read_settings(given: dict[str, Any]) -> GameSettings:
    """The validated settings; InvalidInput names the first invalid one."""
    try:
        return GameSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"game setting {where}: {first['msg']}, got {first.get('input')!r}"
        raise InvalidInput(message, reason="ENVIRONMENT") from error
