"""The execute phase as a task kind: takes or undoes one action on the node, and rolls back unconfirmed ones."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from parlmesh.config import load_source
from parlmesh.errors import FleetError, InvalidInput
from parlmesh.telemetry import get_logger
from parlmesh.types import Array

from .node.actions import ACTIONS, Action, Prepared
from .node.node_memory import NodeState
from .node.settings import NodeConfig, node_settings
from .node.undo_log import MOST_TRIES, Deed, Deeds, DeedState
from .task_parameters import INSTEAD_OF, ExecuteParameters, parsed

_LOOK_SECONDS = 10.0
"""How often a node is checked for actions of other actors that died."""

log = get_logger("parlmesh.mapek")


class Execute:
    """Takes or undoes one action, if the loop holds the node's lease and the operator allows it."""

    kind = "mapek_execute"
    runs_in = "loop"

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._node = ""
        self._begun = asyncio.Event()

    async def attend(self, node_id: str) -> None:
        """The dead man's switch: undoes actions that were not confirmed in time, while the actor runs."""
        self._node = node_id
        while True:
            self._begun.clear()
            left = await self.take_back_overdue(node_id)
            waiting = _LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS)
            try:
                async with asyncio.timeout(max(waiting, 0.01)):
                    await self._begun.wait()
            except TimeoutError:
                continue

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Returns {done, detail, fence}, or {refused} when another loop holds the lease.

        The answer contains `unconfirmed_seconds` when the node will undo the action unless it is confirmed.
        """
        wanted = parsed(ExecuteParameters, self.kind, parameters)
        if self._node and wanted.node != self._node:
            raise InvalidInput(f"parameter 'node' of {self.kind} is {wanted.node!r}; this is {self._node!r}")
        settings = node_settings()
        state = NodeState(settings.folder(), wanted.node, self._clock)
        if wanted.action == "dry_run":
            # Changes nothing, so it takes no lease and blocks no loop that acts for real.
            return await self._once(wanted, settings, state)
        if wanted.undo:
            # Needs no lease: a restarted loop is a new owner, and an undo never touches newer actions.
            return await self._undo(wanted, Deeds(state))
        if not wanted.confirm:
            # Actions that another loop left behind are undone before its lease is granted again.
            await self.take_back_overdue(wanted.node)
        longest = wanted.lease_seconds + wanted.timeout_seconds + wanted.confirm_seconds
        lease = await asyncio.to_thread(state.acquire, wanted.loop, longest)
        if not lease.granted:
            return {"refused": f"loop {lease.owner} holds the node's lease for another {lease.seconds:.0f} s"}
        if not wanted.action:
            return {"done": True, "detail": "the lease was taken", "fence": lease.fence}
        answer: dict[str, Any] = {}
        try:
            answer = await self._answered(wanted, settings, state)
            return {**answer, "fence": lease.fence}
        finally:
            # The action has ended; the lease now covers the time to settle and to confirm.
            seconds = wanted.lease_seconds + float(answer.get("unconfirmed_seconds", 0.0))
            await asyncio.to_thread(state.acquire, wanted.loop, seconds)

    async def _answered(self, wanted: ExecuteParameters, settings: NodeConfig, state: NodeState) -> dict[str, Any]:
        if wanted.confirm:
            found = await asyncio.to_thread(Deeds(state).confirm, wanted.decision)
            stands = found is DeedState.STANDS
            return {"done": stands, "detail": "confirmed" if stands else f"its state is {found or 'unknown'}"}
        return await self._once(wanted, settings, state)

    async def _once(self, wanted: ExecuteParameters, settings: NodeConfig, state: NodeState) -> dict[str, Any]:
        before = await asyncio.to_thread(state.answered, f"did {wanted.decision}")
        if before is not None:
            return before
        answer = await self._do(wanted, settings, Deeds(state))
        await asyncio.to_thread(state.answer, f"did {wanted.decision}", answer)
        return answer

    async def _do(self, wanted: ExecuteParameters, settings: NodeConfig, deeds: Deeds) -> dict[str, Any]:
        action = action_of(wanted.action, settings)
        target = action.target(wanted.parameters)
        real = wanted.action != "dry_run"
        if real:
            settings.check(wanted.action, target)
        elif INSTEAD_OF in wanted.parameters:
            _rehearse(wanted.parameters, settings)
        if await asyncio.to_thread(deeds.find, wanted.decision) is not None:
            return {"done": False, "detail": "an earlier attempt was interrupted"}
        try:
            async with asyncio.timeout(wanted.timeout_seconds):
                if real:
                    # Save what undo needs before touching anything.
                    undo = None
                    if wanted.rollback and isinstance(action, Prepared):
                        undo = await action.before(wanted.parameters, settings)
                    await asyncio.to_thread(
                        deeds.begin,
                        wanted.decision,
                        wanted.action,
                        target,
                        wanted.parameters,
                        undo,
                        wanted.timeout_seconds,
                    )
                    self._begun.set()
                done = await action.do(wanted.parameters, settings)
        except TimeoutError:
            return {"done": False, "detail": f"not done within {wanted.timeout_seconds:g} s"}
        except (FleetError, OSError) as error:
            return {"done": False, "detail": str(error)}
        answer: dict[str, Any] = {"done": True, "detail": done.detail}
        kept = done.undo if wanted.rollback else None
        if real and await asyncio.to_thread(deeds.done, wanted.decision, kept, wanted.confirm_seconds):
            self._begun.set()
            answer["unconfirmed_seconds"] = wanted.confirm_seconds
        return answer

    async def _undo(self, wanted: ExecuteParameters, deeds: Deeds) -> dict[str, Any]:
        deed = await asyncio.to_thread(deeds.take, wanted.decision)
        if deed is None:
            found = await asyncio.to_thread(deeds.find, wanted.decision)
            if found is not None and found.state is DeedState.UNDONE:
                return {"done": True, "detail": f"the node has already undone it: {found.detail}"}
            if found is not None and found.state is DeedState.UNDOING:
                return {"done": False, "detail": "the node is undoing it", "pending": True}
            return {"done": False, "detail": "there is nothing to undo"}
        return await self._taken_back(deed, deeds)

    async def take_back_overdue(self, node: str) -> float | None:
        """Undoes overdue actions and returns the seconds until the next is overdue, or None when none is waiting."""
        try:
            state = NodeState(node_settings().folder(), node, self._clock)
            if not await asyncio.to_thread(state.exists):
                return None
            deeds = Deeds(state)
            for deed in await asyncio.to_thread(deeds.take_overdue):
                answer = await self._taken_back(deed, deeds)
                why = "was not confirmed in time" if deed.state is DeedState.DONE else "was interrupted"
                told = {"action": deed.kind, "why": why, "done": answer["done"], "detail": answer["detail"]}
                log.warning("action_taken_back", node_id=node, decision=deed.decision, **told)
            return await asyncio.to_thread(deeds.next_seconds)
        except Exception as error:
            # Keep the switch running: an error such as a full disk may pass.
            log.error("dead_mans_switch_failed", node_id=node, error=str(error)[:300])
            return _LOOK_SECONDS

    async def _taken_back(self, deed: Deed, deeds: Deeds) -> dict[str, Any]:
        if deed.undo is None:
            await asyncio.to_thread(deeds.ended, deed.decision, DeedState.LEFT, "it cannot be undone")
            return {"done": False, "detail": "there is nothing to undo"}
        settings = node_settings()
        try:
            action = action_of(deed.kind, settings)
            async with asyncio.timeout(deed.timeout_seconds):
                detail = await action.undo(deed.parameters, deed.undo)
        except TimeoutError:
            failed = f"not undone within {deed.timeout_seconds:g} s"
        except (FleetError, OSError) as error:
            failed = str(error)
        else:
            await asyncio.to_thread(deeds.ended, deed.decision, DeedState.UNDONE, detail)
            return {"done": True, "detail": detail}
        again = deed.tries + 1 < MOST_TRIES
        state = DeedState.UNDOING if again else DeedState.LEFT
        await asyncio.to_thread(deeds.ended, deed.decision, state, failed)
        self._begun.set()
        return {"done": False, "detail": failed + ("; the node will try again" if again else ""), "pending": again}


def _rehearse(parameters: Mapping[str, Any], settings: NodeConfig) -> None:
    """Raises InvalidInput when the action behind a dry run could not run here, before it is needed for real."""
    own = {name: value for name, value in parameters.items() if name != INSTEAD_OF}
    action_of(str(parameters[INSTEAD_OF]), settings).target(own)


def action_of(kind: str, settings: NodeConfig) -> Action:
    """The operator's own action of that kind, or the built-in one."""
    if kind in settings.actions:
        found = load_source(f"actions.{kind}", settings.actions[kind])
        action = found() if isinstance(found, type) else found
        if not isinstance(action, Action):
            raise InvalidInput(f"actions.{kind} = {settings.actions[kind]!r} needs kind, target, do and undo")
        return action
    if kind not in ACTIONS:
        known = ", ".join(sorted({*ACTIONS, *settings.actions}))
        raise InvalidInput(f"action is {kind!r}; this node has {known}")
    return ACTIONS[kind]
