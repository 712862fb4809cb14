"""Real processes throughout: the children are small Python programs that report through files and their log."""

import asyncio
import dataclasses
import os
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from parlmesh.errors import DeadlineExceeded, FailedPrecondition
from parlmesh.processes.restart_policy import RestartLimits
from parlmesh.processes.supervisor import Child, ChildSpec, ChildState, Supervisor

QUICK = RestartLimits(first_seconds=0.01, longest_seconds=0.05, max_restarts=3)
SERVE = """
    import json, signal, sys, time
    print(json.dumps({"event": "serving", "port": 1000 + int(sys.argv[1])}), flush=True)
    signal.pause()
"""


def child(folder: Path, program: str, name: str = "child") -> ChildSpec:
    source = folder / f"{name}.py"
    source.write_text(textwrap.dedent(program))
    return ChildSpec(
        name=name,
        command=lambda incarnation: [sys.executable, str(source), str(incarnation)],
        log=folder / "logs" / f"{name}.log",
    )


async def until(condition: Callable[[], bool], deadline_seconds: float = 20.0) -> None:
    async with asyncio.timeout(deadline_seconds):
        while not condition():  # noqa: ASYNC110 - the state of a foreign process has no event
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def running_pid(supervised: Child, other_than: int | None = None) -> int:
    await until(lambda: supervised.pid not in (None, other_than))
    assert supervised.pid is not None
    return supervised.pid


async def test_a_killed_child_is_replaced_by_the_next_incarnation(tmp_path: Path) -> None:
    notes: list[str] = []
    async with Supervisor(note=notes.append, limits=QUICK) as supervisor:
        supervised = supervisor.start(child(tmp_path, SERVE))
        assert await supervisor.serving("child", deadline_seconds=20) == 1001
        first = await running_pid(supervised)
        os.kill(first, signal.SIGKILL)
        second = await running_pid(supervised, other_than=first)
        assert await supervisor.serving("child", deadline_seconds=20) == 1002
        assert (supervised.incarnation, supervised.restarts, supervisor.restarts) == (2, 1, 1)
    assert notes == ["child ended (signal 9 (SIGKILL)), starting it again in 0.0 s"]
    assert not alive(first)
    assert not alive(second)


async def test_a_child_that_keeps_ending_is_given_up_with_its_last_lines(tmp_path: Path) -> None:
    notes: list[str] = []
    async with Supervisor(note=notes.append, limits=QUICK) as supervisor:
        supervised = supervisor.start(child(tmp_path, "import sys; sys.exit('no such world')"))
        async with asyncio.timeout(60):
            await supervised.settled.wait()
    assert supervised.state is ChildState.GIVEN_UP
    assert supervised.restarts == QUICK.max_restarts
    assert supervised.reason.startswith("child ended 4 times within 60 s and is not restarted (exit code 1")
    assert "no such world" in supervised.reason
    assert notes[-1] == supervised.reason


@pytest.mark.parametrize(("code", "what"), [(2, "its configuration"), (4, "its certificates or tokens")])
async def test_a_refused_configuration_is_not_tried_again(tmp_path: Path, code: int, what: str) -> None:
    program = f"import sys; print('training.seed is -1, allowed is 0 and above', file=sys.stderr); sys.exit({code})"
    async with Supervisor(note=lambda _: None, limits=QUICK) as supervisor:
        supervised = supervisor.start(child(tmp_path, program))
        async with asyncio.timeout(60):
            await supervised.settled.wait()
    assert supervised.restarts == 0
    assert supervised.reason == f"child refused {what}: training.seed is -1, allowed is 0 and above"


async def test_a_child_that_fails_the_same_way_before_it_serves_is_given_up_early(tmp_path: Path) -> None:
    limits = dataclasses.replace(QUICK, max_restarts=100, max_alike=3)
    async with Supervisor(note=lambda text: None, limits=limits) as supervisor:
        same = supervisor.start(child(tmp_path, "raise SystemExit('no such network')", "same"))
        varied = supervisor.start(child(tmp_path, "import os\nraise SystemExit(f'odd {os.getpid()}')", "varied"))
        taken = supervisor.start(child(tmp_path, "import sys\nprint('taken')\nsys.exit(3)", "taken"))
        await until(same.settled.is_set)
        assert same.restarts == 2
        assert same.reason.startswith("same ended 3 times in the same way before it served: no such network")
        assert same.spec.log.exists()
        await until(lambda: varied.restarts > 4 and taken.restarts > 4)


async def test_a_child_that_had_served_is_tried_again_however_it_ends(tmp_path: Path) -> None:
    program = """
        import json, sys
        print(json.dumps({"event": "serving", "port": 1}), flush=True)
        print("always the same", flush=True)
        sys.exit(1)
    """
    limits = dataclasses.replace(QUICK, max_restarts=100, max_alike=3)
    async with Supervisor(note=lambda text: None, limits=limits) as supervisor:
        served = supervisor.start(child(tmp_path, program))
        await until(lambda: served.restarts > 4)


async def test_a_command_that_cannot_be_started_is_given_up_by_name(tmp_path: Path) -> None:
    spec = ChildSpec("ghost", lambda _: [str(tmp_path / "nowhere")], tmp_path / "ghost.log")
    async with Supervisor(note=lambda _: None, limits=QUICK) as supervisor:
        supervised = supervisor.start(spec)
        async with asyncio.timeout(60):
            await supervised.settled.wait()
    assert supervised.state is ChildState.GIVEN_UP
    assert "nowhere" in supervised.reason


async def test_stopping_lets_a_child_finish_what_it_does_on_sigterm(tmp_path: Path) -> None:
    program = f"""
        import pathlib, signal, sys
        def end(*_):
            pathlib.Path({str(tmp_path / "farewell")!r}).write_text("saved")
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print('{{"event": "serving", "port": 1}}', flush=True)
        while True:
            signal.pause()
    """
    async with Supervisor(note=lambda _: None, grace_seconds=20) as supervisor:
        supervised = supervisor.start(child(tmp_path, program))
        await supervisor.serving("child", deadline_seconds=20)
        await supervisor.stop()
        assert supervised.state is ChildState.STOPPED
    assert (tmp_path / "farewell").read_text() == "saved"
    assert supervised.restarts == 0


DEAF = """
    import signal, subprocess, sys
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    inner = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print('{"event": "serving", "port": %d}' % inner.pid, flush=True)
    while True:
        signal.pause()
"""


async def test_a_deaf_child_and_its_own_children_are_killed_after_the_grace(tmp_path: Path) -> None:
    async with Supervisor(note=lambda _: None, grace_seconds=0.2) as supervisor:
        supervised = supervisor.start(child(tmp_path, DEAF))
        inner = await supervisor.serving("child", deadline_seconds=20)
        outer = await running_pid(supervised)
        assert alive(inner)
    assert not alive(outer)
    await until(lambda: not alive(inner))


async def test_a_child_may_have_a_grace_of_its_own(tmp_path: Path) -> None:
    patient = dataclasses.replace(child(tmp_path, DEAF, "patient"), grace_seconds=3_600.0)
    async with Supervisor(note=lambda _: None, grace_seconds=0.1) as supervisor:
        kept = supervisor.start(patient)
        other = supervisor.start(child(tmp_path, DEAF, "other"))
        for name in ("patient", "other"):
            await supervisor.serving(name, deadline_seconds=20)
        supervisor.ask_to_stop()
        async with asyncio.timeout(60):
            await other.settled.wait()
        assert not kept.settled.is_set()
        supervisor.kill()


async def test_kill_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    async with Supervisor(note=lambda _: None, grace_seconds=3_600) as supervisor:
        supervised = supervisor.start(child(tmp_path, DEAF))
        await supervisor.serving("child", deadline_seconds=20)
        supervisor.ask_to_stop()
        supervisor.kill()
        async with asyncio.timeout(60):
            await supervised.settled.wait()


async def test_an_error_in_the_body_still_ends_every_child(tmp_path: Path) -> None:
    pids: list[int] = []

    async def fails() -> None:
        async with Supervisor(note=lambda _: None, grace_seconds=3_600) as supervisor:
            supervised = supervisor.start(child(tmp_path, DEAF))
            await supervisor.serving("child", deadline_seconds=20)
            pids.append(await running_pid(supervised))
            raise ValueError("the body")

    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(fails(), 60)
    assert not alive(pids[0])


async def test_no_child_survives_a_supervisor_killed_with_signal_9(tmp_path: Path) -> None:
    spec = child(tmp_path, SERVE)
    owner = tmp_path / "owner.py"
    owner.write_text(
        textwrap.dedent(f"""
            import asyncio, sys
            from pathlib import Path
            from parlmesh.processes.supervisor import ChildSpec, Supervisor

            async def main():
                command = [sys.executable, {str(tmp_path / "child.py")!r}, "7"]
                async with Supervisor(note=print) as supervisor:
                    kept = supervisor.start(ChildSpec("child", lambda _: command, Path({str(spec.log)!r})))
                    await supervisor.serving("child", deadline_seconds=20)
                    print(kept.pid, flush=True)
                    await asyncio.Event().wait()

            asyncio.run(main())
        """)
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(owner), stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        pid = int(await process.stdout.readline())
    assert alive(pid)
    process.kill()
    await process.wait()
    await until(lambda: not alive(pid))


async def test_waiting_for_a_silent_child_ends_at_the_deadline_with_the_log_named(tmp_path: Path) -> None:
    async with Supervisor(note=lambda _: None, grace_seconds=0.1) as supervisor:
        supervisor.start(child(tmp_path, "import signal; print('thinking', flush=True); signal.pause()"))
        with pytest.raises(DeadlineExceeded, match=r"child did not serve within 1 s.*child\.log"):
            await supervisor.serving("child", deadline_seconds=1)


async def test_waiting_for_a_given_up_child_ends_with_its_reason(tmp_path: Path) -> None:
    async with Supervisor(note=lambda _: None, limits=QUICK) as supervisor:
        supervisor.start(child(tmp_path, "import sys; sys.exit(2)"))
        with pytest.raises(FailedPrecondition, match="refused its configuration"):
            await supervisor.serving("child", deadline_seconds=20)


async def test_a_running_child_cannot_be_started_twice_and_a_stopped_one_can(tmp_path: Path) -> None:
    spec = child(tmp_path, SERVE)
    async with Supervisor(note=lambda _: None) as supervisor:
        supervisor.start(spec)
        with pytest.raises(FailedPrecondition, match="child is already running"):
            supervisor.start(spec)
        await supervisor.serving("child", deadline_seconds=20)
        await supervisor.stop(["child"])
        supervisor.start(spec)
        assert await supervisor.serving("child", deadline_seconds=20) == 1001
