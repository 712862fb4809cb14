"""Runs seeded fault schedules against the scheduler's core; a seed that fails is printed and replays exactly."""

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scheduler.simulation import Options, Violation, run_schedule

CHUNK = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000, help="how many schedules (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--actors", type=int, default=Options.actors, help="actors per schedule (default %(default)s)")
    parser.add_argument("--tasks", type=int, default=Options.tasks, help="tasks per schedule (default %(default)s)")
    parser.add_argument(
        "--faults", type=int, default=Options.faults, help="most faults per schedule (default %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes to run in (default %(default)s)")
    arguments = parser.parse_args()
    options = Options(actors=arguments.actors, tasks=arguments.tasks, faults=arguments.faults)
    seeds = range(arguments.seed, arguments.seed + arguments.schedules)
    chunks = [(seeds[start : start + CHUNK], options) for start in range(0, len(seeds), CHUNK)]
    started = time.perf_counter()
    events = done = 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for count, seen, failure in pool.map(run_chunk, chunks):
            done += count
            events += seen
            print(f"\r{done} of {len(seeds)} schedules", end="", file=sys.stderr, flush=True)
            if failure:
                print(failure)
                return 1
    seconds = time.perf_counter() - started
    print(file=sys.stderr)
    print(f"{done} schedules, {events} events, no invariant broken, {seconds:.1f} s ({done / seconds:.0f} schedules/s)")
    return 0


def run_chunk(chunk: tuple[range, Options]) -> tuple[int, int, str]:
    """(schedules run, events seen, the failure or nothing)."""
    seeds, options = chunk
    events = 0
    for count, seed in enumerate(seeds, 1):
        try:
            events += run_schedule(seed, options).books.events
        except Violation as violation:
            return count, events, f"seed {seed}: {violation}"
        except Exception as error:
            return count, events, f"seed {seed}: {type(error).__name__}: {error}"
    return len(seeds), events, ""


if __name__ == "__main__":
    sys.exit(main())
