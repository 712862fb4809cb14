"""A call that gets results of others holds their futures until it is submitted."""

import asyncio
import gc
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any
from weakref import ref

import pytest

from parlmesh.client import PARLController
from parlmesh.client.function_calls import call_of, calls_of, value_of
from parlmesh.client.outcomes import Outcome, OutcomeState, Unsent
from parlmesh.errors import FailedPrecondition
from parlmesh.function_tasks import FunctionTask
from parlmesh.handlers import RunsIn
from parlmesh.testing import wait_until_async
from parlmesh.testing.tasks import FakeTasks, succeeded


def took(*values: Any, **more: Any) -> None:
    """Takes anything."""


TOOK = FunctionTask(took, "took", RunsIn.THREAD)


def future(task_id: str) -> "Future[Any]":
    made: Any = Future()
    made.task_id = task_id
    return made  # type: ignore[no-any-return]


def test_a_call_holds_the_futures_among_its_arguments_wherever_they_stand() -> None:
    names = ("plain", "listed", "keyed", "value", "named")
    futures = {name: future(name) for name in names}
    given = [1, futures["listed"]]
    args = (futures["plain"], (given, {futures["keyed"]: {"k": futures["value"]}}))
    call = call_of(TOOK, args, {"more": futures["named"]}, "t")
    given.clear()
    assert sorted(call.dependencies) == sorted(names)
    assert set(map(id, call.holds)) == set(map(id, futures.values()))
    ((_, one),) = calls_of(TOOK, [(futures["plain"], 2)], 3)  # type: ignore[arg-type]
    assert one.holds == (futures["plain"],)
    assert call_of(TOOK, (1,), {}, "t").holds == ()


@pytest.mark.parametrize("size", [0, 4 << 20])
async def test_a_call_that_was_submitted_holds_no_future(
    controller: PARLController, fake: FakeTasks, size: int
) -> None:
    """What it needs is known then. Holding on would keep what nobody needs, for as long as the task takes."""
    fake.run = lambda spec: succeeded(spec) if spec.task_id.endswith("-1") or not spec.dependencies else None
    parents = [controller.submit(TOOK, number) for number in range(3)]
    await asyncio.gather(*parents)
    held = [ref(parent) for parent in parents]

    def given() -> Iterator[Any]:
        while parents:
            yield parents.pop()

    mapped = controller.map(TOOK, given(), [bytes(size)] * 3)
    waiting = asyncio.ensure_future(anext(mapped))
    await fake.until(lambda: len(fake.specs) == 6)

    def is_free() -> bool:
        gc.collect()
        return not any(each() for each in held)

    await wait_until_async(is_free, 60)
    waiting.cancel()
    await asyncio.wait([waiting])
    await mapped.aclose()


def test_a_function_that_no_actor_knows_says_who_makes_it_known() -> None:
    refused = Unsent(OutcomeState.REFUSED, FailedPrecondition("no actor has it", reason="UNKNOWN_KIND"))
    with pytest.raises(FailedPrecondition) as caught:
        value_of(Outcome("t", 0, refused))
    assert "parlmesh-actor --set 'tasks=[module]'" in caught.value.__notes__[0]
