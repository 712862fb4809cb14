"""An orchestrator on its own fleet: plans, runs sub-agents in parallel, gathers, merges, and reports.

python examples/orchestration/parallel_search.py
"""

import asyncio

from parlmesh.client import PARLController
from parlmesh.orchestration import Budget
from parlmesh.orchestration.live import Orchestrator
from parlmesh.orchestration.report.report import report_of
from parlmesh.orchestration.report.report_text import lines_of
from parlmesh.orchestration.report.trace import attempts_in

PLACES = range(100, 112)
SLOTS = 8


async def main() -> None:
    async with PARLController() as controller:
        await controller.initialize(SLOTS, actor={"plugins": ["orchestration"]})
        job = Orchestrator(controller, job_id="search", budget=Budget(critical_steps=200))
        left = list(PLACES)
        found = []
        for number in range(SLOTS):
            job.create_subagent(f"scout-{number}")
        while left:
            stage, left = left[:SLOTS], left[SLOTS:]
            for name, place in zip(job.idle, stage, strict=False):
                job.assign_task(name, {"sub_task": place, "agent": "large", "step_seconds": 0.005})
            for place, seen in zip(stage, await job.wait(), strict=True):
                found += [place] if seen.done else []
        result = job.finish(answer=sorted(found))
        print(f"found {len(result.answer)} of {len(PLACES)} in {result.spent['critical_steps']:g} critical steps")
        print(f"one agent alone: {sum(each.steps for each in result.observations)} steps")
        print("\n".join(lines_of(report_of(attempts_in(await controller.get_trace()), job.job_id, SLOTS))))


if __name__ == "__main__":
    asyncio.run(main())
