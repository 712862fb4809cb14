"""Monitor, analyse and plan as task kinds, for actors with the plug-in `mapek`."""

import asyncio
import math
import time
from typing import Any

from parlmesh.errors import InvalidInput
from parlmesh.types import Array

from .node.analysis import analyse
from .node.node_memory import NodeState
from .node.probes import pages, round_trips
from .node.sensors import FIRST_SECONDS, Sensors
from .node.settings import node_settings
from .planning.action_choice import choose
from .task_parameters import AnalyseParameters, MonitorParameters, PlanParameters, parsed
from .types import Candidate


class Monitor:
    """Reads the node: psutil, round trips, metric pages. Parameters: node, probes."""

    kind = "mapek_monitor"
    runs_in = "loop"

    def __init__(self) -> None:
        self._sensors = Sensors()

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Returns {metrics, missing, time}."""
        wanted = parsed(MonitorParameters, self.kind, parameters)
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
    """Checks a reading with thresholds and detectors, whose states are stored on the node."""

    kind = "mapek_analyse"
    runs_in = "loop"

    async def run(self, parameters: dict[str, Any], tensors: dict[str, Array], context: Any) -> dict[str, Any]:
        """Returns {symptoms, scores}."""
        wanted = parsed(AnalyseParameters, self.kind, parameters)
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
        """Returns {action, reason, standing}."""
        wanted = parsed(PlanParameters, self.kind, parameters)
        try:
            candidates = [Candidate(**each) for each in wanted.candidates]
        except TypeError as error:
            raise InvalidInput(f"a candidate of {self.kind} cannot be read: {error}") from None
        choice = choose(wanted.planner, candidates, wanted.seed, wanted.models, wanted.features)
        return {"action": choice.action, "reason": choice.reason, "standing": choice.standing}
