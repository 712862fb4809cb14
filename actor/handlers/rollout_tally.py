"""The counts in the result of a rollout, and which of the learner's refusals fail the task."""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field

from parlmesh.environments.two_players import Finished
from parlmesh.errors import FailedPrecondition, InvalidInput
from parlmesh.handlers import HandlerError, Result
from parlmesh.rollouts import games_by_opponent

from ..learner.trajectory_uploads import Receipt
from ..learner.unconfirmed_uploads import Upload


@dataclass(slots=True)
class Tally:
    """The counts of one task so far."""

    steps: int = 0
    episodes: int = 0
    policy_version: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    games: list[Finished] = field(default_factory=list)
    opponents: dict[str, str] = field(default_factory=dict)

    def add(self, receipt: Receipt) -> None:
        """Adds one receipt; raises HandlerError for an error other than FailedPrecondition."""
        error = receipt.error
        if error is None:
            self.accepted += 1
        elif isinstance(error, FailedPrecondition):
            # Late or unwanted experience is not the task's fault: the submitter sees how much was refused, and why.
            self.refused[error.reason] += 1
        else:
            retryable = not isinstance(error, InvalidInput)
            text = f"the learner refused a trajectory: {error.message}"
            raise HandlerError(text, retryable=retryable, reason=error.reason)

    def result(self) -> Result:
        """The task's result."""
        return Result(
            {
                "steps": self.steps,
                "episodes": self.episodes,
                "policy_version": self.policy_version,
                "accepted": self.accepted,
                "refused": dict(self.refused),
                **({"games": games_by_opponent(self.games)} if self.games else {}),
                **({"opponents": self.opponents} if self.opponents else {}),
            }
        )

    async def settled(self, uploads: deque[Upload]) -> Result:
        """The task's result, once every receipt is in."""
        while uploads:
            # The upload continues even if its receipt is no longer waited for.
            self.add(await asyncio.shield(asyncio.wrap_future(uploads.popleft())))
        return self.result()
