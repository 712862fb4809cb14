"""Undoes actions that failed or ended unknown, also after a restart and as soon as a silent node answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from parlmesh.errors import FailedPrecondition, FleetError, InvalidInput, NotFound, PermissionDenied

from .config import ActionConfig, MapekConfig
from .fleet_actions import FleetAction
from .node_calls import Done, NodeCalls
from .types import Decision, Status

Owed = Sequence[tuple[Decision, Mapping[str, Any]]]
_FINAL = (FailedPrecondition, InvalidInput, NotFound, PermissionDenied)


@dataclass(slots=True)
class Rollback:
    """The rollbacks of one loop."""

    config: MapekConfig
    nodes: NodeCalls
    fleet: Mapping[str, FleetAction]
    save: Callable[..., Awaitable[None]]
    owing: set[str] = field(default_factory=set)
    """Nodes with a pending rollback; no new action is taken there until it is settled."""

    def owed(self, decision: Decision, action: ActionConfig, before: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The undo information to save before the action; None = the action is never undone."""
        if not action.rollback or (action.kind in self.fleet and before is None):
            return None
        return {"before": before, "parameters": filled(action.parameters, decision.node)}

    async def undo(self, decision: Decision, action: ActionConfig, owed: Mapping[str, Any]) -> Done:
        """Undoes the action on the node, or through the service that took it."""
        if action.kind not in self.fleet:
            return await self.nodes.undo(decision, action)
        try:
            async with asyncio.timeout(action.timeout_seconds):
                told = await self.fleet[action.kind].undo(decision.node, owed["parameters"], owed["before"])
        except TimeoutError:
            return Done(False, f"not undone within {action.timeout_seconds:g} s", unknown=True)
        except FleetError as error:
            # Errors in _FINAL will not go away; a service that could not be reached may answer later.
            return Done(False, error.message, unknown=not isinstance(error, _FINAL))
        return Done(True, told)

    async def settle(self, owed: Owed) -> None:
        """Tries each rollback once; rollbacks without an answer are still owed."""
        self.owing = {decision.node for decision, _ in owed}
        await asyncio.gather(*(self._settled(decision, undo) for decision, undo in owed))

    async def _settled(self, decision: Decision, owed: Mapping[str, Any]) -> None:
        action = self.config.actions.get(decision.action)
        if action is None or action.kind != decision.kind:
            action = ActionConfig(kind=decision.kind)
        try:
            done = await self.undo(decision, action, owed)
        except FleetError as error:
            done = Done(False, error.message, unknown=True)
        if done.unknown or done.refused or done.pending:
            return
        decision.status = Status.ROLLED_BACK if done.success else Status.UNKNOWN
        why = decision.error or "the loop ended before there was an answer"
        decision.error = f"{why}; rollback: {done.detail}"[:1000]
        # If this cannot be saved, the rollback is still owed; repeating it is harmless.
        with suppress(FailedPrecondition):
            await self.save(decision, settled=True)
            self.owing.discard(decision.node)


def filled(parameters: Mapping[str, Any], node: str) -> dict[str, Any]:
    """The parameters with {node} replaced by the node's name."""
    return {
        key: value.replace("{node}", node) if isinstance(value, str) else value for key, value in parameters.items()
    }
