"""Runs a fleet of real processes under seeded faults and checks its history; a failing seed is printed and replays."""

import argparse
import asyncio
import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from parlmesh.testing.postgres import Cluster
from tools.faults.chaos import run_chaos
from tools.faults.schedule import DATABASE_FAULTS, FAULTS, make_plan
from tools.faults.shim import available

MOST_SHOWN = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="decides the fleet and every fault (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults under load (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=1, help="how many, one after the other (default %(default)s)")
    parser.add_argument("--gap", type=float, default=2.5, help="mean seconds between two faults (default %(default)s)")
    parser.add_argument("--faults", default="", help=f"comma-separated, from: {', '.join(FAULTS | DATABASE_FAULTS)}")
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite", help="the scheduler's store")
    parser.add_argument("--keep", type=Path, help="folder for logs and histories (default a new one in /tmp)")
    arguments = parser.parse_args()
    if not available():
        print("gcc is missing; it compiles the disks and clocks of a chaos run")
        return 2
    names = [name for name in arguments.faults.split(",") if name]
    failed = False
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        plan = make_plan(seed, arguments.seconds, names=names, gap_seconds=arguments.gap, store=arguments.store)
        print(f"seed {seed}: scheduler {plan.scheduler}, actors {list(plan.actors)}")
        for fault in plan.faults:
            print(f"  {fault}")
        if arguments.keep is not None:
            arguments.keep.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=arguments.keep))
        with Cluster(fsync=True) if arguments.store == "postgresql" else nullcontext() as database:
            report = asyncio.run(run_chaos(plan, folder / "fleet", database))
        print(report.text(), flush=True)
        (folder / "memory.json").write_text(json.dumps(report.memory))
        for problem in report.problems[:MOST_SHOWN]:
            print(f"  VIOLATION {problem}", flush=True)
        if report.problems:
            failed = True
            replay = f"--seed {seed} --seconds {arguments.seconds:g} --gap {arguments.gap:g} --store {arguments.store}"
            print(f"  replay: tools/chaos.py {replay} {f'--faults {arguments.faults}' if names else ''}; {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
