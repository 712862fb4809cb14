"""Actions that the loop has done by the scheduler, the learner or a cluster, not by the node itself."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from parlmesh.client import ActorState, PARLController
from parlmesh.errors import FailedPrecondition, InvalidInput

from .node.actions import Done


class Drain:
    """Its node's actors finish what they have and leave. What has left comes back only by its own supervisor."""

    kind = "drain"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def do(self, node: str, parameters: Mapping[str, Any]) -> Done:
        """Parameters: actor, where only one is meant."""
        wanted = str(parameters.get("actor", ""))
        actors = [each for each in await self._controller.list_actors() if each.node_id == node]
        found = [
            each.actor_id for each in actors if each.state is not ActorState.LOST and wanted in ("", each.actor_id)
        ]
        if not found:
            raise FailedPrecondition(f"there is no actor {wanted or 'at all'} on {node}")
        await self._controller.drain(found)
        return Done(f"draining {', '.join(found)}")

    async def undo(self, node: str, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """A drained actor has left."""
        raise FailedPrecondition("a drained actor has left", reason="NO_UNDO")


class Quarantine:
    """The node gets no tasks until the quarantine ends or is ended."""

    kind = "quarantine"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def do(self, node: str, parameters: Mapping[str, Any]) -> Done:
        """Parameters: reason."""
        reason = str(parameters.get("reason") or "mapek: it is sick")
        await self._controller.quarantine([node], reason)
        return Done(f"{node} is in quarantine: {reason}", {})

    async def undo(self, node: str, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """The node gets tasks again."""
        await self._controller.release([node])
        return f"{node} gets tasks again"


class PauseRun:
    """A training gives its node's cores away."""

    kind = "pause_run"

    def __init__(self, controller: PARLController) -> None:
        self._controller = controller

    async def do(self, node: str, parameters: Mapping[str, Any]) -> Done:
        """Parameters: run."""
        run_id = str(parameters.get("run", ""))
        await self._controller.pause_run(run_id)
        return Done(f"run {run_id or 'of the learner'} is paused", {})

    async def undo(self, node: str, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """The run goes on."""
        await self._controller.resume_run(str(parameters.get("run", "")))
        return "the run goes on"


class Scale:
    """A deployment of a Kubernetes cluster gets more or fewer pods, through the placement adapter."""

    kind = "scale"

    def __init__(self, connect: Callable[[Mapping[str, Any]], Any]) -> None:
        self._connect = connect

    async def do(self, node: str, parameters: Mapping[str, Any]) -> Done:
        """Parameters: namespace, deployment, by (default 1), least, most; kubeconfig, context or server."""
        namespace, name = str(parameters.get("namespace", "default")), str(parameters.get("deployment", ""))
        least, most = int(parameters.get("least", 1)), int(parameters.get("most", 10))
        if not name:
            raise InvalidInput("scale needs the parameter deployment")
        gateway = await asyncio.to_thread(self._connect, parameters)
        found = await asyncio.to_thread(gateway.deployment, namespace, name)
        before = int(found.spec.replicas or 0)
        wanted = min(max(before + int(parameters.get("by", 1)), least), most)
        if wanted == before:
            raise FailedPrecondition(f"{name} has {before} pods; {least} to {most} are allowed")
        await asyncio.to_thread(_scaled, gateway, found, wanted)
        return Done(f"{name} has {wanted} pods instead of {before}", {"replicas": before})

    async def undo(self, node: str, parameters: Mapping[str, Any], undo: Mapping[str, Any]) -> str:
        """As many pods as before."""
        gateway = await asyncio.to_thread(self._connect, parameters)
        namespace, name = str(parameters.get("namespace", "default")), str(parameters.get("deployment", ""))
        found = await asyncio.to_thread(gateway.deployment, namespace, name)
        await asyncio.to_thread(_scaled, gateway, found, int(undo["replicas"]))
        return f"{name} has {undo['replicas']} pods again"


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
    from parlmesh.worlds.cluster.gateway import connect

    kubeconfig = parameters.get("kubeconfig")
    return connect(
        Path(kubeconfig) if kubeconfig else None, parameters.get("context"), str(parameters.get("server", ""))
    )


def _scaled(gateway: Any, deployment: Any, replicas: int) -> None:
    """Only if nobody changed the deployment since it was read."""
    metadata = deployment.metadata
    gateway.scale(metadata.namespace, metadata.name, replicas, metadata.resource_version, trial=False)
