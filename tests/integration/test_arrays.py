"""Large arrays and passed-on results over real processes: little of them passes through the client, and nothing
hangs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import parlmesh
from parlmesh.blobs.spares import SPARES, private_files
from parlmesh.client import PARLController, Placement, TaskRequest
from parlmesh.client.sync import Controller
from parlmesh.errors import FleetError, Unavailable
from parlmesh.testing import Process, free_port, wait_until_async
from parlmesh.testing.proxy import Proxy

pytestmark = pytest.mark.e2e

_ROOT = Path(__file__).parents[2]
_RESULT_BYTES = 100_000


@parlmesh.task(kind="grown")
def grown(array: Any) -> Any:
    """Adds one to every element."""
    return array + 1


_kept: list[Any] = []


@parlmesh.task(kind="keeps")
def keeps(array: Any) -> float:
    """The sum; the array stays with the actor."""
    _kept.append(array)
    return float(array.sum())


@parlmesh.task(kind="first_kept")
def first_kept() -> Any:
    """An argument of an earlier task."""
    return _kept[0]


class Fleet:
    """A scheduler with a file store, whose actors know this module's functions."""

    def __init__(self, folder: Path) -> None:
        self.blobs = folder / "blobs"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._store = folder / "store.sqlite"

    @contextmanager
    def scheduler(self) -> Iterator[Process]:
        given = (f"listen.port={self.port}", f"store.path={self._store}", f"blobs.folder={self.blobs}")
        with self._process("scheduler", *given, "leases.duration_seconds=2") as process:
            process.wait_for("server_started")
            yield process

    @contextmanager
    def actor(self, name: str) -> Iterator[Process]:
        given = (f"scheduler={self.address}", f"node_id={name}", f"actor_id={name}", f'tasks=["{__file__}"]')
        with self._process("actor", *given) as process:
            process.wait_for("connected")
            yield process

    def files(self) -> list[str]:
        return [name for name in os.listdir(self.blobs) if not name.startswith(".")]

    def _process(self, module: str, *settings: str) -> Process:
        options = [option for setting in (*settings, "metrics.port=null") for option in ("--set", setting)]
        return Process(module, *options, cwd=_ROOT)


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


async def chain(fleet: Fleet, length: int) -> float:
    """Bytes that the client sent and received, for each byte of the results."""
    async with Proxy(fleet.address) as proxy, PARLController(proxy.address) as controller:
        future = controller.submit(grown, np.zeros(_RESULT_BYTES // 8))
        for _ in range(length - 1):
            future = controller.submit(grown, future)
        async with asyncio.timeout(300):
            result = await future
        assert result.tolist() == [float(length)] * (_RESULT_BYTES // 8)
        return (proxy.up.carried_bytes + proxy.down.carried_bytes) / (length * _RESULT_BYTES)


async def test_little_of_a_chain_passes_the_client_and_nothing_is_left_of_it(fleet: Fleet) -> None:
    with fleet.scheduler(), fleet.actor("one"):
        assert await chain(fleet, 50) < 0.01
        await wait_until_async(lambda: not fleet.files(), 60.0)


@pytest.mark.slow
async def test_little_of_a_long_chain_passes_the_client(fleet: Fleet) -> None:
    with fleet.scheduler(), fleet.actor("one"), fleet.actor("two"):
        assert await chain(fleet, 1000) < 0.01


def on(node: str, task_id: str, *dependencies: str) -> TaskRequest:
    argument: Any = {"$result": dependencies[0]} if dependencies else {"$tensor": "0"}
    return TaskRequest(
        grown.kind,
        {"args": [argument]},
        {} if dependencies else {"0": np.zeros(_RESULT_BYTES // 8)},
        task_id=task_id,
        dependencies=dependencies,
        placement=Placement(node_id=node),
    )


async def test_a_result_outlives_its_actor_and_the_scheduler_and_one_that_is_gone_is_named(fleet: Fleet) -> None:
    with fleet.scheduler() as scheduler, fleet.actor("one") as one:
        async with PARLController(fleet.address) as controller:
            await controller.submit_tasks([on("one", "kept"), on("one", "lost")])
            for task_id in ("kept", "lost"):
                assert (await controller.result(task_id, timeout=60)).ok
        one.kill()
        scheduler.kill()
    assert len(fleet.files()) >= 2
    with fleet.scheduler(), fleet.actor("two"):
        async with PARLController(fleet.address) as controller:
            await controller.submit_task(on("two", "reads", "kept"))
            outcome = await controller.result("reads", timeout=60)
            assert outcome.tensors["0"][:2].tolist() == [2.0, 2.0]
            for name in fleet.files():
                (fleet.blobs / name).unlink()
            await controller.submit_task(on("two", "fails", "lost"))
            outcome = await controller.result("fails", timeout=60)
            assert isinstance(outcome.error, FleetError)
            assert outcome.error.reason == "BLOB_GONE"


async def test_an_array_is_put_although_the_scheduler_restarts_meanwhile(fleet: Fleet) -> None:
    array = np.full(_RESULT_BYTES // 8, 2.0)
    with fleet.scheduler() as scheduler, fleet.actor("one"):
        async with PARLController(fleet.address) as controller:
            before = await controller.put(array + 1.0)
            scheduler.kill()
            putting = asyncio.create_task(controller.put(array))
            await wait_until_async(lambda: len(fleet.files()) == 2, 60.0)
            with fleet.scheduler():
                handle = await putting
                assert await controller.submit(keeps, handle) == float(array.sum())
                assert await controller.submit(keeps, before) == float(array.sum() + len(array))


async def test_an_array_that_is_being_put_when_the_controller_is_closed_is_not_waited_for(fleet: Fleet) -> None:
    with fleet.scheduler() as scheduler:
        controller = await PARLController.connect(fleet.address)
        scheduler.kill()
        putting = asyncio.create_task(controller.put(np.ones(_RESULT_BYTES // 8)))
        await wait_until_async(lambda: len(fleet.files()) == 1, 60.0)
        await controller.close()
        with pytest.raises(Unavailable):
            await putting


async def test_results_that_are_held_stay_what_they_are_while_files_are_written_again(tmp_path: Path) -> None:
    with TemporaryDirectory(dir="/dev/shm") as place:
        fleet = Fleet(tmp_path)
        fleet.blobs = Path(place) / "blobs"
        with fleet.scheduler(), fleet.actor("one"):
            async with PARLController(fleet.address) as controller:
                held: dict[int, Any] = {}
                arguments = (np.full(1 << 17, float(number)) for number in range(60))
                number = 0
                async for result in controller.map(grown, arguments):
                    number += 1
                    assert (result == number).all()
                    if number % 10 == 0:
                        held[number] = result
                await wait_until_async(lambda: not fleet.files(), 60.0)
                assert all((array == number).all() for number, array in held.items())
            assert 0 < len(os.listdir(fleet.blobs / SPARES)) < 100, "of 120 arrays"


async def test_the_same_array_is_taken_again_and_again_although_it_is_given_up_in_between(fleet: Fleet) -> None:
    array = np.ones(_RESULT_BYTES // 8)
    with fleet.scheduler(), fleet.actor("one"):
        async with PARLController(fleet.address) as controller:
            for _ in range(250):
                assert (await controller.submit(grown, array))[0] == 2.0
            for _ in range(50):
                results = await asyncio.gather(*(controller.submit(grown, array) for _ in range(3)))
                assert [result[0] for result in results] == [2.0] * 3
            for _ in range(50):
                reference: Any = await controller.put(array)
                assert (await controller.submit(grown, reference))[0] == 2.0
                del reference
            del results
            await wait_until_async(lambda: not fleet.files(), 60.0)


async def test_an_actor_answers_with_an_argument_of_an_earlier_task_whoever_still_needs_it(fleet: Fleet) -> None:
    array = np.arange(_RESULT_BYTES // 8) * 1.0
    with fleet.scheduler(), fleet.actor("one"):
        async with PARLController(fleet.address) as controller:
            reference: Any = await controller.put(array)
            assert await controller.submit(keeps, reference) == array.sum()
            assert (await controller.submit(first_kept)).tolist() == array.tolist()
            del reference
            await wait_until_async(lambda: not fleet.files(), 60.0)
            assert (await controller.submit(first_kept)).tolist() == array.tolist()


async def test_an_argument_that_came_back_is_read_after_another_task_had_it(fleet: Fleet) -> None:
    array = np.arange(_RESULT_BYTES // 8) * 1.0
    with fleet.scheduler(), fleet.actor("one"):
        async with PARLController(fleet.address) as controller:
            (echoed,) = await controller.execute_parallel([TaskRequest("echo", {}, {"x": array})])
            (other,) = await controller.execute_parallel([TaskRequest("noop", {}, {"x": array})])
            assert other.ok
            await controller.get_statistics()  # comes after whatever was given up
            assert echoed.tensors["x"].tolist() == array.tolist()


@parlmesh.task(kind="same")
def same(array: Any) -> Any:
    """Returns its argument."""
    return array


async def test_a_result_that_is_passed_on_stays_although_nobody_holds_the_first(fleet: Fleet) -> None:
    array = np.zeros(_RESULT_BYTES // 8)
    with fleet.scheduler(), fleet.actor("one"):
        async with PARLController(fleet.address) as controller:
            for number in range(300):
                future = controller.submit(grown, array)
                if number % 3 == 1:
                    await future
                future = controller.submit(same, future)
                if number % 3 == 2:
                    await future
                assert (await controller.submit(same, future))[0] == 1.0
            del future
            await wait_until_async(lambda: not fleet.files(), 60.0)


async def test_the_arrays_of_a_task_are_read_by_its_id_here_and_in_another_program(fleet: Fleet) -> None:
    array = np.arange(_RESULT_BYTES // 8)
    with fleet.scheduler(), fleet.actor("one"):
        async with PARLController(fleet.address) as controller, PARLController(fleet.address) as other:
            task_id = await controller.submit_task("echo", {}, {"array": array})
            for reader in (other, controller, other, controller):
                outcome = await reader.result(task_id, timeout=60)
                await reader.fetch(outcome)
                assert np.array_equal(outcome.tensors["array"], array)
            outcome.release()
            await wait_until_async(lambda: not fleet.files(), 60.0)


@parlmesh.task(kind="added")
def added(array: Any, other: Any) -> Any:
    """The sum, element by element."""
    return array + other


@pytest.mark.parametrize("other", [1.0, np.ones(_RESULT_BYTES // 8)], ids=["number", "array"])
async def test_a_result_stays_for_a_call_that_alone_holds_its_future(fleet: Fleet, other: Any) -> None:
    def computed(controller: Controller) -> list[Any]:
        futures = [controller.submit(added, np.full(_RESULT_BYTES // 8, float(n)), 0.0) for n in range(20)]
        for future in futures:
            future.result(60)
        return futures

    def taken(futures: list[Any]) -> Iterator[Any]:
        while futures:
            yield futures.pop(0)

    def run(controller: Controller) -> None:
        expected = [float(n + 1) for n in range(20)]
        for _ in range(5):
            submitted = [controller.submit(added, future, other) for future in taken(computed(controller))]
            assert [float(each.result(60)[0]) for each in submitted] == expected
            mapped = controller.map(added, taken(computed(controller)), [other] * 20)
            assert [float(each[0]) for each in mapped] == expected

    with fleet.scheduler(), fleet.actor("one"):
        await asyncio.to_thread(use, fleet.address, run)
        async with PARLController(fleet.address) as controller:
            for _ in range(5):
                futures = [controller.submit(added, np.full(_RESULT_BYTES // 8, float(n)), 0.0) for n in range(20)]
                await asyncio.gather(*futures)
                mapped = controller.map(added, taken(futures), [other] * 20)
                assert [float(each[0]) async for each in mapped] == [float(n + 1) for n in range(20)]
        await wait_until_async(lambda: not fleet.files(), 60.0)


def use(address: str, run: Callable[[Controller], None]) -> None:
    with Controller(address) as controller:
        run(controller)


WRITES = """
import asyncio, sys
import numpy as np
from parlmesh.client import PARLController

async def main():
    async with PARLController(sys.argv[1]) as controller:
        numbers = iter(range(1 << 30))
        async def puts():
            while True:
                await controller.put(np.full(1 << 18, float(next(numbers))))
        async with asyncio.timeout(0.5 if sys.argv[2] == "closes" else None):
            print("writes", flush=True)
            await puts()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["closes", "is killed"])
async def test_a_client_that_ends_while_it_writes_leaves_nothing_behind(fleet: Fleet, end: str) -> None:
    with fleet.scheduler() as scheduler:
        for _ in range(3):
            command = [sys.executable, "-c", WRITES, fleet.address, end]
            client = subprocess.Popen(  # noqa: ASYNC220 - its first line is all that is waited for
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            assert client.stdout is not None
            assert client.stdout.readline() == b"writes\n"
            if end == "is killed":
                await wait_until_async(lambda: bool(fleet.files()), 60.0)
                client.kill()
            client.wait(60)
            if end == "closes":
                await wait_until_async(lambda: not fleet.files() and not private_files(fleet.blobs), 10.0)
            client.stdout.close()
        for name in fleet.files():
            (fleet.blobs / name).unlink()
        scheduler.terminate()
        scheduler.assert_exits(0)
    assert not fleet.blobs.exists()


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGTERM)", "os.kill(os.getpid(), signal.SIGKILL)"])
async def test_a_program_that_ends_without_closing_its_fleet_leaves_no_arrays(end: str, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "import numpy as np, parlmesh\n"
        "from parlmesh.client.sync import Controller\n"
        "@parlmesh.task\n"
        "def total(array):\n    return float(array.sum())\n"
        "fleet = Controller()\n"
        f"fleet.initialize(1, scheduler={{'blobs': {{'folder': {str(blobs)!r}}}}})\n"
        "kept = fleet.put(np.ones(100_000))\n"
        "print(fleet.submit(total, kept).result(60), flush=True)\n"
        f"print(any(each.stat().st_size > 100_000 for each in os.scandir({str(blobs)!r})), flush=True)\n"
        f"{end}\n"
    )
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout == "100000.0\nTrue\n", ended.stderr
    # The scheduler ends after its parent.
    await wait_until_async(lambda: not blobs.exists(), 30)
