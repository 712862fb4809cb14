"""The four phases as task kinds: what an actor with the plug-in `mapek` does for a loop."""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from parlmesh.config import load_source
from parlmesh.errors import FleetError, InvalidInput
from parlmesh.types import Array

from .config import DetectionConfig, ProbesConfig, ThresholdConfig
from .node.actions import ACTIONS, Action
from .node.analysis import MOST_METRICS, analyse
from .node.probes import pages, round_trips
from .node.sensors import FIRST_SECONDS, Sensors
from .node.settings import NodeConfig, node_settings
from .node.state import NodeState
from .planning.choice import choose
from .types import Candidate


class _Parameters(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    node: str = Field(min_length=1, max_length=200)


class MonitorParameters(_Parameters):
    """What to read."""

    probes: ProbesConfig = ProbesConfig()


class AnalyseParameters(_Parameters):
    """One reading, and what it is held against."""

    loop: str = Field(min_length=1, max_length=200)
    reading: str = Field(min_length=1, max_length=200)
    """Names the reading; the same one again changes nothing."""
    metrics: dict[str, float] = Field(max_length=MOST_METRICS)
    thresholds: tuple[ThresholdConfig, ...] = ()
    detection: DetectionConfig = DetectionConfig()


class PlanParameters(_Parameters):
    """Candidates, and how to choose."""

    planner: str
    seed: str
    candidates: tuple[dict[str, Any], ...] = Field(min_length=1, max_length=100)


class ExecuteParameters(_Parameters):
    """One action on the node, under a lease."""

    decision: str = Field(min_length=1, max_length=200)
    loop: str = Field(min_length=1, max_length=200)
    lease_seconds: float = Field(gt=0, le=100_000)
    action: str = ""
    """Kind of the action; empty = take the lease and do nothing."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    undo: bool = False
    """Undo what this decision did."""


class Monitor:
    """Reads the node: psutil, round trips, metric pages. Parameters: node, probes."""

    kind = "mapek_monitor"
    runs_in = "loop"

    def __init__(self) -> None:
        self._sensors = Sensors()

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Answers {metrics, missing, time}."""
        wanted = _parsed(MonitorParameters, self.kind, parameters)
        if self._sensors.first():
            await asyncio.sleep(FIRST_SECONDS)
        probes = wanted.probes
        own, trips, read = await asyncio.gather(
            asyncio.to_thread(self._sensors.read, probes.disks, probes.services),
            round_trips(probes.neighbours),
            pages(probes.prometheus, probes.samples),
        )
        metrics = own[0] | trips[0] | read[0]
        missing = own[1] | trips[1] | read[1]
        for name in [name for name, value in metrics.items() if not math.isfinite(value)]:
            missing[name] = f"it is {metrics.pop(name)}"
        return {"metrics": metrics, "missing": missing, "time": time.time()}


class Analyse:
    """Holds a reading against thresholds and detectors, whose states are kept on the node."""

    kind = "mapek_analyse"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Answers {symptoms, scores}."""
        wanted = _parsed(AnalyseParameters, self.kind, parameters)
        state = NodeState(node_settings().folder(), wanted.node)

        def change(states: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            found = analyse(wanted.metrics, wanted.thresholds, wanted.detection, states, time.time())
            changed, symptoms, scores = found
            return changed, {"symptoms": [each.to_dict() for each in symptoms], "scores": scores}

        return await asyncio.to_thread(state.step, wanted.loop, f"{wanted.loop} {wanted.reading}", change)


class Plan:
    """Chooses one of the allowed actions; runs on any actor."""

    kind = "mapek_plan"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Answers {action, reason, standing}."""
        wanted = _parsed(PlanParameters, self.kind, parameters)
        try:
            candidates = [Candidate(**each) for each in wanted.candidates]
        except TypeError as error:
            raise InvalidInput(f"a candidate of {self.kind} cannot be read: {error}") from None
        choice = choose(wanted.planner, candidates, wanted.seed)
        return {"action": choice.action, "reason": choice.reason, "standing": choice.standing}


class Execute:
    """Does or undoes one action, if the loop has the node's lease and the operator allows it."""

    kind = "mapek_execute"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Answers {done, detail, fence}, or {refused} where another loop has the lease."""
        wanted = _parsed(ExecuteParameters, self.kind, parameters)
        settings = node_settings()
        state = NodeState(settings.folder(), wanted.node)
        if wanted.action == "dry_run":
            # Nothing is touched, so nobody who means it is kept waiting.
            return await self._answered(wanted, settings, state)
        lease = await asyncio.to_thread(state.acquire, wanted.loop, wanted.lease_seconds + wanted.timeout_seconds)
        if not lease.granted:
            return {"refused": f"loop {lease.owner} has the node for another {lease.seconds:.0f} s"}
        if not wanted.action:
            return {"done": True, "detail": "the lease was taken", "fence": lease.fence}
        try:
            return {**await self._answered(wanted, settings, state), "fence": lease.fence}
        finally:
            # The action has ended: from here the lease only covers the time to settle.
            await asyncio.to_thread(state.acquire, wanted.loop, wanted.lease_seconds)

    async def _answered(self, wanted: ExecuteParameters, settings: NodeConfig, state: NodeState) -> dict[str, Any]:
        before = await asyncio.to_thread(state.answered, f"did {wanted.decision}")
        if wanted.undo:
            return await self._undo(wanted, before)
        if before is not None:
            return before
        answer = await self._do(wanted, settings)
        await asyncio.to_thread(state.answer, f"did {wanted.decision}", answer)
        return answer

    async def _do(self, wanted: ExecuteParameters, settings: NodeConfig) -> dict[str, Any]:
        action = _action(wanted.action, settings)
        target = action.target(wanted.parameters)
        if wanted.action != "dry_run":
            settings.check(wanted.action, target)
        try:
            async with asyncio.timeout(wanted.timeout_seconds):
                done = await action.do(wanted.parameters, settings)
        except TimeoutError:
            return {"done": False, "detail": f"not done within {wanted.timeout_seconds:g} s", "undo": None}
        except (FleetError, OSError) as error:
            return {"done": False, "detail": str(error), "undo": None}
        return {"done": True, "detail": done.detail, "undo": done.undo}

    async def _undo(self, wanted: ExecuteParameters, before: Mapping[str, Any] | None) -> dict[str, Any]:
        if before is None or before.get("undo") is None:
            return {"done": False, "detail": "there is nothing that could be undone"}
        action = _action(wanted.action, node_settings())
        try:
            async with asyncio.timeout(wanted.timeout_seconds):
                return {"done": True, "detail": await action.undo(wanted.parameters, before["undo"])}
        except TimeoutError:
            return {"done": False, "detail": f"not undone within {wanted.timeout_seconds:g} s"}
        except (FleetError, OSError) as error:
            return {"done": False, "detail": str(error)}


P = TypeVar("P", bound=_Parameters)


def _action(kind: str, settings: NodeConfig) -> Action:
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


def _parsed(model: type[P], kind: str, parameters: dict[str, Any]) -> P:
    try:
        return model.model_validate(parameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidInput(f"parameter {name!r} of {kind} is {first.get('input')!r}: {first['msg']}") from None
