"""A loop's requests to a node's execute handler, and how it reads the answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from parlmesh.client import Outcome

from .config import ActionConfig, MapekConfig
from .types import Decision

_LONGEST_TEXT = 500
_NEVER_RAN = ("INVALID_PARAMETERS", "HANDLER_ERROR", "QUEUE_TIMEOUT")


@dataclass(slots=True)
class Done:
    """How an action ended, with a detail in words; `refused` means that nothing was changed."""

    success: bool
    detail: str
    refused: bool = False
    unknown: bool = False
    unconfirmed: bool = False
    """The node undoes it unless it is confirmed."""
    pending: bool = False
    """The node has not undone it yet and will."""


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The calls of one loop."""

    config: MapekConfig
    owner: str
    ask: Callable[..., Awaitable[Outcome]]

    async def do(self, decision: Decision, action: ActionConfig, parameters: Mapping[str, Any], kind: str) -> Done:
        """Takes the action; an empty `kind` only takes the node's lease."""
        return await self._call(decision, action, {"action": kind, "parameters": dict(parameters)})

    async def undo(self, decision: Decision, action: ActionConfig) -> Done:
        """Undoes the decision's action; the node knows what it did."""
        return await self._call(decision, action, {"action": action.kind, "undo": True})

    async def confirm(self, decision: Decision, action: ActionConfig) -> Done:
        """Confirms the action, so that the node keeps it."""
        return await self._call(decision, action, {"action": action.kind, "confirm": True})

    async def _call(self, decision: Decision, action: ActionConfig, wanted: Mapping[str, Any]) -> Done:
        request = {
            "node": decision.node,
            "decision": decision.id,
            "loop": self.owner,
            "lease_seconds": self.config.lease_seconds,
            "timeout_seconds": action.timeout_seconds,
            "rollback": action.rollback,
            "confirm_seconds": action.confirm_seconds if action.rollback else 0.0,
            **wanted,
        }
        seconds = self.config.node_seconds + action.timeout_seconds
        outcome = await self.ask(self.config.kinds.execute, request, node=decision.node, seconds=seconds, once=True)
        answer = outcome.value
        if answer is None:
            told = outcome.error
            return Done(False, f"{told}"[:_LONGEST_TEXT], unknown=told is None or told.reason not in _NEVER_RAN)
        if answer.get("refused"):
            return Done(False, str(answer["refused"])[:_LONGEST_TEXT], refused=True)
        # Only a literal True counts: a node may answer anything.
        return Done(
            answer.get("done") is True,
            str(answer.get("detail", ""))[:_LONGEST_TEXT],
            unconfirmed=bool(answer.get("unconfirmed_seconds")),
            pending=bool(answer.get("pending")),
        )
