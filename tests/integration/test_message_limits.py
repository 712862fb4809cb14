"""One limit, announced by the server: large tasks run where they fit, wait with a reason where not, and break no
stream."""

from pathlib import Path

import numpy as np
import pytest

from parlmesh.client import OutcomeState, PARLController, TaskRequest
from parlmesh.errors import InvalidInput

pytestmark = pytest.mark.e2e

LARGE = np.arange(9_000_000, dtype=np.uint8)
# Arrays go inside the messages, whose limits are tested.
INSIDE = {"blobs": {"least_bytes": 0}}
ROOMY = {"listen": {"max_message_bytes": 32 << 20}, "queue": {"max_payload_bytes": 16 << 20}} | INSIDE


async def test_a_task_of_nine_megabytes_comes_and_goes_when_the_scheduler_alone_allows_it() -> None:
    async with PARLController() as controller:
        await controller.initialize(1, scheduler=ROOMY)
        large, small = await controller.execute_parallel(
            [TaskRequest("echo", {}, {"x": LARGE}), TaskRequest("echo", {"n": 1})], timeout=60
        )
        assert large.ok, large.error
        assert (large.attempts, small.ok) == (1, True)
        assert np.array_equal(large.tensors["x"], LARGE)


async def test_a_task_that_fits_no_actor_waits_by_name_and_harms_nobody() -> None:
    async with PARLController() as controller:
        await controller.initialize(1, scheduler=ROOMY, actor={"limits": {"message_bytes": 1 << 20}})
        task_id = await controller.submit_task("echo", {}, {"x": LARGE}, queue_timeout=60)
        assert (await controller.execute_parallel([TaskRequest("noop")] * 100, timeout=60))[-1].ok
        explained = await controller.explain(task_id)
        assert "takes messages of 12582912 bytes (limits.message_bytes)" in explained
        assert (await controller.cancel([task_id])) == [task_id]
        assert (await controller.result(task_id)).attempts == 0
        medium = await controller.submit_task("echo", {}, {"x": LARGE[:600_000]})
        assert (await controller.result(medium, timeout=60)).ok


async def test_a_task_too_large_for_any_scheduler_is_refused_by_name_before_it_is_sent() -> None:
    async with PARLController() as controller:
        await controller.initialize(1, scheduler=INSIDE)
        with pytest.raises(
            InvalidInput, match=r"has 90\d+ bytes; a request holds at most 8372224 .the scheduler's listen"
        ):
            await controller.submit_task("echo", {}, {"x": LARGE})
        with pytest.raises(InvalidInput, match=r"the limit is 4194304 \(queue.max_payload_bytes\)"):
            await controller.submit_task("echo", {}, {"x": LARGE[:5_000_000]})
        assert (await controller.execute_parallel([TaskRequest("noop")], timeout=60))[0].ok


async def test_a_result_that_the_scheduler_would_not_take_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "growing.py").write_text(
        "import numpy\n"
        "from parlmesh.handlers import Result\n"
        "class Grow:\n"
        "    kind, runs_in = 'grow', 'thread'\n"
        "    def run(self, parameters, tensors, context):\n"
        "        return Result({}, {'x': numpy.zeros(9_000_000, numpy.uint8)})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    async with PARLController() as controller:
        await controller.initialize(1, scheduler=INSIDE, actor={"handlers": {"grow": "growing:Grow"}})
        (outcome,) = await controller.execute_parallel([TaskRequest("grow")], timeout=60)
        assert (outcome.state, outcome.attempts) == (OutcomeState.FAILED, 1)
        assert outcome.error is not None
        assert outcome.error.reason == "INVALID_RESULT"
        assert "the scheduler's listen.max_message_bytes" in str(outcome.error)


async def test_a_task_whose_inputs_fit_no_message_fails_by_name_and_breaks_no_stream() -> None:
    async with PARLController() as controller:
        await controller.initialize(1, scheduler=INSIDE)
        parents = [TaskRequest("echo", {"text": "x" * 3_000_000}, task_id=f"parent-{number}") for number in range(3)]
        names = [parent.task_id for parent in parents]
        child = TaskRequest("echo", {"args": [{"$result": name} for name in names]}, dependencies=names)
        *_, ended = await controller.execute_parallel([*parents, child], timeout=60)
        assert (ended.state, ended.attempts) == (OutcomeState.FAILED, 1)
        assert ended.error is not None
        assert ended.error.reason == "RESULT_MISSING"
        assert 'the result of task "parent-2" has 3000' in str(ended.error)
        assert (await controller.execute_parallel([TaskRequest("noop")], timeout=60))[0].ok
