"""Cost of one task in the scheduler's core - submit, lease, result - with a given number of actors of one slot."""

import argparse
import json
import time
from itertools import count

from scheduler.config import SchedulerConfig
from scheduler.core.actions import Assign
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.core import Core
from scheduler.core.task import Priority, Task
from scheduler.process_memory import relax_garbage_collection
from scheduler.wire.hot_messages import assignment_body

BATCH = 64
RUN_SECONDS = 0.0001
TICK_SECONDS = 0.05
SECONDS_PER_BATCH = 0.002
RUN_TIMEOUT_SECONDS = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=50_000)
    arguments = parser.parse_args()
    # As the service does.
    relax_garbage_collection()
    core, now, numbers = Core(SchedulerConfig(), now=0.0, wall_time=0.0), 0.0, count()
    body = assignment_body("noop", Priority.NORMAL, RUN_TIMEOUT_SECONDS, None)
    for session in range(1, arguments.actors + 1):
        core.connect(Hello(session, f"actor-{session}", slots=1, kinds=("noop",)), now)
        core.report(session, now, credits=1)
    core.take_actions()
    # Processor time: the core waits for nothing, and other processes must not count.
    done, next_tick, started = 0, TICK_SECONDS, time.process_time()
    while done < arguments.tasks:
        core.submit([Task(f"task-{next(numbers)}", "noop", body=body) for _ in range(BATCH)], now)
        given = [action for action in core.take_actions() if isinstance(action, Assign)]
        now += SECONDS_PER_BATCH
        for assign in given:
            results = [(task.task_id, task.lease_id, b"", None, RUN_SECONDS) for task in assign.tasks]
            core.report(assign.session, now, credits=len(results), results=results)
            done += len(results)
        if now >= next_tick:
            # Heartbeats keep every actor; they are not part of a task, and are cheap beside it.
            next_tick = now + TICK_SECONDS
            core.tick(now, now)
    seconds = time.process_time() - started
    print(json.dumps({"microseconds_per_task": seconds / done * 1e6, "actors": arguments.actors, "tasks": done}))


if __name__ == "__main__":
    main()
