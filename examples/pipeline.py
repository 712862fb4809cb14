"""Tasks with dependencies and priorities: two measurements, a report after both, and an urgent task in between.

python examples/pipeline.py
"""

import asyncio

from parlmesh.client import PARLController, Priority, TaskRequest


async def main() -> None:
    async with PARLController() as controller:
        await controller.initialize(1)
        tasks = [
            TaskRequest("sleep", {"seconds": 0.2}, task_id="north", priority=Priority.LOW),
            TaskRequest("sleep", {"seconds": 0.2}, task_id="south", priority=Priority.LOW),
            TaskRequest("echo", {"said": "report"}, task_id="report", dependencies=["north", "south"]),
            TaskRequest("sleep", {"seconds": 0.1}, task_id="urgent", priority=Priority.CRITICAL),
        ]
        ended = [tasks[outcome.index].task_id async for outcome in controller.as_completed(tasks)]
        print(" -> ".join(str(name) for name in ended))
        refused = await controller.execute_parallel(
            [TaskRequest("fail", task_id="broken"), TaskRequest("echo", dependencies=["broken"])]
        )
        print(f"after a failure: {refused[1].state}, because {refused[1].error}")


if __name__ == "__main__":
    asyncio.run(main())
