import asyncio
import signal
import socket
from pathlib import Path

import pytest

from parlmesh.testing import HandClock, Process, free_port, wait_until, wait_until_async


def test_a_hand_clock_moves_only_when_told() -> None:
    clock = HandClock(10.0)
    assert (clock(), clock.monotonic()) == (10.0, 10.0)
    clock.advance(2.5)
    assert (clock(), clock.monotonic()) == (12.5, 12.5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server(("127.0.0.1", free_port())):
        pass


def test_waiting_returns_what_was_found_and_fails_at_the_deadline() -> None:
    found = iter([None, 0, "", "it"])
    assert wait_until(lambda: next(found), 10) == "it"
    with pytest.raises(AssertionError, match=r"never did not hold within 0\.02 s"):
        wait_until(never, 0.02)


def never() -> bool:
    return False


async def test_waiting_on_a_loop_lets_it_run() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(done.set)
    assert await wait_until_async(done.is_set, 60)

    async def later() -> str:
        return "it"

    assert await wait_until_async(later, 10) == "it"
    with pytest.raises(AssertionError, match="never did not hold"):
        await wait_until_async(never, 0.02)


def script(tmp_path: Path, body: str) -> Process:
    (tmp_path / "under_test.py").write_text(f"import json, sys, time\n{body}")
    return Process("under_test", cwd=tmp_path)


SAY = "print(json.dumps({{'event': {event!r}, 'n': {n}}}), file=sys.stderr, flush=True)\n"


def test_a_process_is_watched_through_its_events(tmp_path: Path) -> None:
    body = SAY.format(event="step", n=1) + "print('no json', file=sys.stderr)\n" + SAY.format(event="step", n=2)
    with script(tmp_path, body) as process:
        assert process.wait_for("step", n=2) == {"event": "step", "n": 2}
        process.assert_exits(0)
        assert process.lines[1] == "no json"
        assert [event["n"] for event in process.events("step")] == [1, 2]


def test_a_process_that_ends_early_is_a_failure_with_its_last_lines(tmp_path: Path) -> None:
    with (
        script(tmp_path, "sys.exit('broken pipe dream')") as process,
        pytest.raises(AssertionError, match="broken pipe dream"),
    ):
        process.wait_for("ready")


def test_a_process_that_ends_otherwise_than_said_is_a_failure(tmp_path: Path) -> None:
    with script(tmp_path, "sys.exit(5)") as process, pytest.raises(AssertionError, match="ended with 5, not 0"):
        process.assert_exits(0)


def test_a_killed_process_is_gone(tmp_path: Path) -> None:
    with script(tmp_path, SAY.format(event="up", n=0) + "time.sleep(600)") as process:
        process.wait_for("up")
        process.kill()
        assert not process.running
        assert process.wait() == -signal.SIGKILL


def test_no_process_outlives_its_block(tmp_path: Path) -> None:
    with script(tmp_path, SAY.format(event="up", n=0) + "time.sleep(600)") as process:
        process.wait_for("up")
        assert process.running
    assert not process.running


def test_waiting_for_the_end_has_a_deadline(tmp_path: Path) -> None:
    with (
        script(tmp_path, "time.sleep(600)") as process,
        pytest.raises(AssertionError, match=r"still runs after 0\.02 s"),
    ):
        process.wait(0.02)
