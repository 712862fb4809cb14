"""Settings of search in games; the string under a field is its help text."""

from typing import TYPE_CHECKING

from pydantic import Field

from parlmesh.config import Config

if TYPE_CHECKING:
    from parlmesh.types import Search


class SearchConfig(Config):
    """Gumbel AlphaZero: players search before they move, and the network learns what their searches found. Needs a game
    and a network whose values travel with its policy, such as board."""

    simulations: int = Field(default=0, ge=0, le=10_000)
    """Positions that each side looks at before it moves in rollouts. The policy then learns the improved policy, and
    values learn the outcome, instead of PPO's loss. 0 = no search."""
    evaluation_simulations: int = Field(default=0, ge=0, le=10_000)
    """Such positions in evaluations and matches; 0 = the network's own choice is measured."""
    considered: int = Field(default=16, ge=1, le=1_024)
    """Most moves that a search tries for the side to move."""
    value_scale: float = Field(default=0.1, gt=0.0, le=10.0)
    """Weight of a position's value against the network's own preference."""

    def in_rollouts(self) -> "Search | None":
        """How rollouts search."""
        return self._with(self.simulations)

    def in_evaluations(self) -> "Search | None":
        """How evaluations and matches search."""
        return self._with(self.evaluation_simulations)

    def _with(self, simulations: int) -> "Search | None":
        # This imports numpy, which must not happen before the learner has limited its threads.
        from parlmesh.types import Search

        return Search(simulations, self.considered, self.value_scale) if simulations else None
