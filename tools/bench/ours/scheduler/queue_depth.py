"""Cost of one task in the scheduler's core - submit, lease, result - while a given number of others is queued."""

import argparse
import json
import resource
import sys
import time
from itertools import count

from scheduler.config import QueueConfig, SchedulerConfig
from scheduler.core.actions import Assign
from scheduler.core.actors.actor_sessions import Hello
from scheduler.core.core import Core
from scheduler.core.task import Priority, Task
from scheduler.process_memory import relax_garbage_collection
from scheduler.wire.hot_messages import assignment_body

SESSION = 1
BATCH = 64
SUBMITTED_AT_ONCE = 1000
RUN_SECONDS = 0.0001
TICK_SECONDS = 0.05
SECONDS_PER_BATCH = 0.002
RUN_TIMEOUT_SECONDS = 3600.0


class Driver:
    """One client and one actor with as many slots as a batch has tasks, on their own clock."""

    def __init__(self, max_tasks: int) -> None:
        config = SchedulerConfig(queue=QueueConfig(max_tasks=max_tasks))
        self.now = 0.0
        self.core = Core(config, now=0.0, wall_time=0.0)
        self._body = assignment_body("noop", Priority.NORMAL, RUN_TIMEOUT_SECONDS, None)
        self._numbers = count()
        self._next_tick = TICK_SECONDS

    def connect(self) -> list[Task]:
        hello = Hello(SESSION, "actor", slots=BATCH, kinds=("noop",))
        self.core.connect(hello, self.now)
        self.core.report(SESSION, self.now, credits=BATCH)
        return self.given()

    def submit(self, tasks: int) -> None:
        batch = [Task(f"task-{next(self._numbers)}", "noop", body=self._body) for _ in range(tasks)]
        self.core.submit(batch, self.now)

    def finish(self, tasks: list[Task]) -> list[Task]:
        """Reports results and takes the tasks that are assigned in return."""
        self.now += SECONDS_PER_BATCH
        results = [(task.task_id, task.lease_id, b"", None, RUN_SECONDS) for task in tasks]
        self.core.report(SESSION, self.now, credits=len(tasks), results=results)
        if self.now >= self._next_tick:
            self._next_tick = self.now + TICK_SECONDS
            self.core.tick(self.now, self.now)
        return self.given()

    def given(self) -> list[Task]:
        return [task for action in self.core.take_actions() if isinstance(action, Assign) for task in action.tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=100_000)
    arguments = parser.parse_args()
    # As the service does.
    relax_garbage_collection()
    driver = Driver(arguments.queued * 2 + BATCH * 2)
    before = resident_bytes()
    for start in range(0, arguments.queued, SUBMITTED_AT_ONCE):
        driver.submit(min(SUBMITTED_AT_ONCE, arguments.queued - start))
        driver.core.take_actions()
    memory = (resident_bytes() - before) / arguments.queued
    given = driver.connect()
    # Processor time: the core waits for nothing, and other processes must not count.
    done, started = 0, time.process_time()
    while done < arguments.tasks:
        driver.submit(len(given))
        done += len(given)
        given = driver.finish(given)
    seconds = time.process_time() - started
    assert driver.core.life.statistics.unfinished == arguments.queued
    result = {
        "microseconds_per_task": seconds / done * 1e6,
        "memory_bytes_per_queued_task": memory,
        "queued": arguments.queued,
        "tasks": done,
    }
    print(json.dumps(result))


def resident_bytes() -> int:
    """Resident size of this process now, or its peak where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


if __name__ == "__main__":
    main()
