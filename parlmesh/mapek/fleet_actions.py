"""Actions that the loop takes through the scheduler, the learner or a cluster, not on the node itself.

`before` returns what undoing the action will need and changes nothing; the loop saves it before it acts.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parlmesh.client import ActorState, PARLController
from parlmesh.errors import FailedPrecondition, InvalidInput

Undo = Mapping[str, Any]
_QUARANTINE = "mapek: it is sick"


class Drain:
    """The node's actors finish their tasks and leave. Only their own supervisor brings them back."""

    kind = "drain"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def before(self, node: str, parameters: Mapping[str, Any]) -> Undo | None:
        """None: a drained actor has left, so there is no undo."""
        return None

    async def do(self, node: str, parameters: Mapping[str, Any], before: Undo | None) -> str:
        """Parameters: actor, to drain only that one."""
        wanted = str(parameters.get("actor", ""))
        actors = [each for each in await self._controller.list_actors() if each.node_id == node]
        found = [
            each.actor_id for each in actors if each.state is not ActorState.LOST and wanted in ("", each.actor_id)
        ]
        if not found:
            raise FailedPrecondition(f"there is no actor {wanted or 'at all'} on {node}")
        await self._controller.drain(found)
        return f"draining {', '.join(found)}"

    async def undo(self, node: str, parameters: Mapping[str, Any], before: Undo) -> str:
        """Not possible: a drained actor has left."""
        raise FailedPrecondition("a drained actor has left", reason="NO_UNDO")


class Quarantine:
    """The node gets no tasks until the quarantine expires or is lifted."""

    kind = "quarantine"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def before(self, node: str, parameters: Mapping[str, Any]) -> Undo:
        """Parameters: reason. Raises FailedPrecondition when the node is already in quarantine."""
        why = await self._reason(node)
        if why:
            raise FailedPrecondition(f"{node} is already in quarantine: {why}")
        return {"reason": str(parameters.get("reason") or _QUARANTINE)}

    async def do(self, node: str, parameters: Mapping[str, Any], before: Undo | None) -> str:
        """The scheduler lifts it after its own quarantine_seconds, whether or not the loop is still alive."""
        reason = (before or {}).get("reason", _QUARANTINE)
        await self._controller.quarantine([node], reason)
        return f"{node} is in quarantine: {reason}"

    async def undo(self, node: str, parameters: Mapping[str, Any], before: Undo) -> str:
        """Releases the node, unless it is in quarantine for another reason."""
        why = await self._reason(node)
        if why and why != before["reason"]:
            return f"{node} stays in quarantine for another reason: {why}"
        await self._controller.release([node])
        return f"{node} gets tasks again"

    async def _reason(self, node: str) -> str:
        actors = await self._controller.list_actors()
        return next((each.quarantine_reason for each in actors if each.node_id == node), "")


class PauseRun:
    """Pauses a run, which frees its node's cores."""

    kind = "pause_run"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def before(self, node: str, parameters: Mapping[str, Any]) -> Undo:
        """Parameters: run."""
        return {}

    async def do(self, node: str, parameters: Mapping[str, Any], before: Undo | None) -> str:
        """The run stops collecting and training; its policy is still served."""
        run_id = str(parameters.get("run", ""))
        await self._controller.pause_run(run_id)
        return f"run {run_id or 'of the learner'} is paused"

    async def undo(self, node: str, parameters: Mapping[str, Any], before: Undo) -> str:
        """Resumes the run."""
        await self._controller.resume_run(str(parameters.get("run", "")))
        return "the run continues"


class Scale:
    """Gives a Kubernetes deployment more or fewer pods, through the placement adapter."""

    kind = "scale"

    def __init__(self, connect: Callable[[Mapping[str, Any]], Any]) -> None:
        self._connect = connect

    async def before(self, node: str, parameters: Mapping[str, Any]) -> Undo:
        """Parameters: namespace, deployment, by (default 1), least, most; kubeconfig, context or server."""
        least, most = int(parameters.get("least", 1)), int(parameters.get("most", 10))
        _, found = await self._deployment(parameters)
        name, replicas = found.metadata.name, int(found.spec.replicas or 0)
        wanted = min(max(replicas + int(parameters.get("by", 1)), least), most)
        if wanted == replicas:
            raise FailedPrecondition(f"{name} has {replicas} pods; {least} to {most} are allowed")
        return {"replicas": replicas, "wanted": wanted}

    async def do(self, node: str, parameters: Mapping[str, Any], before: Undo | None) -> str:
        """Scales only if the deployment still has the number of pods that `before` read."""
        assert before is not None
        return await self._scaled(parameters, before["replicas"], before["wanted"], "instead of")

    async def undo(self, node: str, parameters: Mapping[str, Any], before: Undo) -> str:
        """Restores the previous number of pods, unless it has been scaled by another party since."""
        return await self._scaled(parameters, before["wanted"], before["replicas"], "again, after")

    async def _scaled(self, parameters: Mapping[str, Any], expected: int, wanted: int, word: str) -> str:
        gateway, found = await self._deployment(parameters)
        name, replicas = found.metadata.name, int(found.spec.replicas or 0)
        if replicas == wanted:
            return f"{name} has {wanted} pods already"
        if replicas != expected:
            raise FailedPrecondition(f"{name} has {replicas} pods, not {expected}: another party has scaled it")
        await asyncio.to_thread(_scale, gateway, found, wanted)
        return f"{name} has {wanted} pods {word} {replicas}"

    async def _deployment(self, parameters: Mapping[str, Any]) -> tuple[Any, Any]:
        namespace, name = str(parameters.get("namespace", "default")), str(parameters.get("deployment", ""))
        if not name:
            raise InvalidInput("scale needs the parameter deployment")
        gateway = await asyncio.to_thread(self._connect, parameters)
        return gateway, await asyncio.to_thread(gateway.deployment, namespace, name)


FleetAction = Drain | Quarantine | PauseRun | Scale


def fleet_actions(controller: PARLController) -> dict[str, FleetAction]:
    """By kind."""
    actions: tuple[FleetAction, ...] = (
        Drain(controller),
        Quarantine(controller),
        PauseRun(controller),
        Scale(_gateway),
    )
    return {action.kind: action for action in actions}


def _gateway(parameters: Mapping[str, Any]) -> Any:
    from parlmesh.worlds.cluster.kubernetes_client import connect

    kubeconfig = parameters.get("kubeconfig")
    return connect(
        Path(kubeconfig) if kubeconfig else None, parameters.get("context"), str(parameters.get("server", ""))
    )


def _scale(gateway: Any, deployment: Any, replicas: int) -> None:
    """Scales only if the deployment has not changed since it was read."""
    metadata = deployment.metadata
    gateway.scale(metadata.namespace, metadata.name, replicas, metadata.resource_version, trial=False)
