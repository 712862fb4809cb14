"""Fan your own function out over a fleet, and process outcomes as they arrive.

python examples/fan_out.py              on a fleet on this machine
python examples/fan_out.py HOST:50051   on yours, whose actors have --set handlers.primes=fan_out:Primes
"""

import asyncio
import sys
from typing import Any

from parlmesh.client import PARLController, TaskRequest


class Primes:
    """Counts the primes in a range; actors install the class, and tasks refer to its `kind`."""

    kind = "primes"
    runs_in = "process"

    def run(self, parameters: dict[str, Any], tensors: dict[str, Any], context: Any) -> dict[str, Any]:
        first, last = int(parameters["first"]), int(parameters["last"])
        found = [n for n in range(max(2, first), last) if all(n % d for d in range(2, int(n**0.5) + 1))]
        return {"primes": len(found)}


async def main() -> None:
    async with PARLController(*sys.argv[1:2]) as controller:
        if not sys.argv[1:]:
            await controller.initialize(2, actor={"handlers": {"primes": "fan_out:Primes"}})
        ranges = [TaskRequest("primes", {"first": n, "last": n + 1000}) for n in range(0, 20_000, 1000)]
        total = 0
        async for outcome in controller.as_completed(ranges):
            total += int(outcome.unwrap()["primes"])
        print(f"{total} primes below 20,000")


if __name__ == "__main__":
    asyncio.run(main())
