"""Decorated functions: their names, what they refuse, and how a program is imported for them."""

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from parlmesh import function_tasks
from parlmesh.errors import ConfigError, InvalidInput
from parlmesh.function_tasks import (
    ARGUMENTS,
    IMPORTING,
    FunctionTask,
    handler_at,
    load_tasks,
    source_of,
    sources,
    stop_import,
    task,
)
from parlmesh.handlers import Context, Handler, HandlerError, Result, RunsIn

CONTEXT = Context(task_id="t", attempt=1, actor_id="a", slot=0)


@task
def scaled(values: Any, factor: float = 2.0) -> Any:
    return values * factor


@task(kind="later", runs_in="loop")
async def later(value: int) -> int:
    return value + 1


@task
def opaque() -> Any:
    return object()


def called(function: FunctionTask[..., Any], *args: Any, **kwargs: Any) -> Any:
    answer = function.run(*function.arguments(*args, **kwargs), CONTEXT)
    assert isinstance(answer, Result)
    return answer


def test_a_function_is_a_handler_named_after_its_module_and_can_still_be_called() -> None:
    assert isinstance(scaled, Handler)
    assert (scaled.kind, scaled.runs_in) == (f"{__name__}.scaled", RunsIn.THREAD)
    assert scaled(3) == 6
    answer = called(scaled, np.ones(2), factor=3.0)
    assert np.array_equal(answer.tensors["0"], [3.0, 3.0])


async def test_an_async_function_runs_on_the_loop() -> None:
    assert (later.kind, later.runs_in) == ("later", RunsIn.LOOP)
    answer = await later.run(*later.arguments(4), CONTEXT)
    assert answer.parameters == {"value": 5}


def test_arguments_that_the_function_would_not_take_are_refused_where_it_is_called() -> None:
    with pytest.raises(InvalidInput, match="too many positional arguments"):
        scaled.arguments(1, 2, 3)
    with pytest.raises(InvalidInput, match="is a object"):
        scaled.arguments(object())


def test_an_answer_that_cannot_be_sent_fails_the_task_for_good() -> None:
    with pytest.raises(HandlerError, match="is a object") as caught:
        called(opaque)
    assert not caught.value.retryable


@pytest.mark.parametrize("forged", [{"args": 3}, {"args": [], "kwargs": []}, {"args": [0] * 2000}])
def test_forged_arguments_are_refused(forged: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="takes"):
        scaled.run(forged, {}, CONTEXT)


def test_a_function_that_no_actor_could_find_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="defined inside a function"):

        @task
        def inner() -> None: ...

    with pytest.raises(InvalidInput, match="runs_in is 'loop'; it must be thread, process or inline"):
        task(runs_in="loop")(test_a_function_that_no_actor_could_find_is_refused_at_once)


def test_a_program_is_imported_up_to_its_first_call_of_a_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import parlmesh\n"
        "@parlmesh.task\n"
        "def double(x):\n    return 2 * x\n"
        "fleet = parlmesh.fleet(workers=1)\n"
        "raise RuntimeError('the program ran')\n"
    )
    monkeypatch.delenv(IMPORTING, raising=False)
    found = load_tasks([str(program)])
    assert list(found) == ["program.double"]
    assert IMPORTING not in os.environ
    assert source_of(found["program.double"]) == f"program.double@{program}"
    assert handler_at(f"program.double@{program}").kind == "program.double"
    stop_import()  # nothing is being imported now


@pytest.mark.parametrize(
    "call",
    ["PARLController() as c:\n        await c.initialize(1)", "PARLController('127.0.0.1:9') as c:\n        pass"],
    ids=["own", "running"],
)
async def test_a_program_with_an_event_loop_is_imported_on_another_one(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "with_a_loop.py"
    program.write_text(
        "import asyncio, parlmesh\n"
        "from parlmesh.client import PARLController\n"
        "@parlmesh.task\n"
        "def double(x):\n    return 2 * x\n"
        "async def main():\n"
        f"    async with {call}\n"
        "    raise RuntimeError('the program ran')\n"
        "asyncio.run(main())\n"
    )
    monkeypatch.delenv(IMPORTING, raising=False)
    assert list(load_tasks([str(program)])) == ["with_a_loop.double"]
    await asyncio.sleep(0)
    assert asyncio.get_running_loop().is_running()


def test_a_spawned_process_names_functions_as_its_parent_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spawned = ModuleType("__mp_main__")
    spawned.__file__ = str(tmp_path / "program.py")
    monkeypatch.setitem(sys.modules, "__mp_main__", spawned)
    monkeypatch.setattr(function_tasks, "_registered", {})
    exec("import parlmesh\n@parlmesh.task\ndef double(x):\n    return 2 * x\n", vars(spawned))
    assert spawned.double.kind == "program.double"
    assert sources() == (str(tmp_path / "program.py"),)


def test_a_program_reads_its_own_command_line_where_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "reads_arguments.py"
    program.write_text(
        "import argparse, parlmesh\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--rows', type=int, required=True)\n"
        "rows = parser.parse_args().rows\n"
        "@parlmesh.task\n"
        "def count():\n    return rows\n"
    )
    monkeypatch.setattr(sys, "argv", ["parlmesh-actor", "--config", "actor.yaml"])
    monkeypatch.setenv(ARGUMENTS, '["--rows", "5"]')
    assert load_tasks([str(program)])["reads_arguments.count"]() == 5
    assert sys.argv[0] == "parlmesh-actor"
    monkeypatch.delenv(ARGUMENTS)
    with pytest.raises(ConfigError, match="cannot be imported: SystemExit: 2"):
        load_tasks([str(program)])


def test_a_source_without_functions_is_named() -> None:
    with pytest.raises(ConfigError, match="'math', which has no function decorated"):
        load_tasks(["math"])
    with pytest.raises(ConfigError, match="no such file"):
        load_tasks(["nowhere.py"])
    with pytest.raises(
        ConfigError, match=r"no module 'no_such_module'; if it is in the current folder, set PYTHONPATH=\."
    ):
        load_tasks(["no_such_module"])
    assert "no_such_module" not in sys.modules


def test_a_function_of_a_notebook_is_refused_when_it_is_called_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    monkeypatch.setattr(function_tasks, "_registered", {scaled.kind: scaled})
    cell = "import parlmesh\n@parlmesh.task\ndef double(x):\n    return 2 * x\n"
    cell += "@parlmesh.task(kind='elsewhere')\ndef known(x):\n    ...\n"
    exec(cell, vars(notebook))
    assert sources() == (__name__,)
    with pytest.raises(InvalidInput, match=r"__main__\.double is defined at a prompt or in a notebook"):
        notebook.double.arguments(3)
    assert notebook.double(3) == 6
    assert notebook.known.arguments(3) == ({"args": [3]}, {})
    assert scaled.arguments(3) == ({"args": [3]}, {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"run_timeout": "x"}, "scaled: run_timeout is 'x'; it must be a number of seconds"),
        ({"queue_timeout": True}, "scaled: queue_timeout is True; it must be a number of seconds"),
        ({"max_attempts": "x"}, "scaled: max_attempts is 'x'; it must be a whole number"),
        ({"max_attempts": 1.5}, "scaled: max_attempts is 1.5; it must be a whole number"),
        ({"priority": "HIGH"}, "scaled: priority is 'HIGH'; it must be a parlmesh.Priority, such as"),
        ({"node_id": 3}, "scaled: node_id is 3; it must be text"),
        ({"labels": {"gpu": 1}}, "scaled: labels is {'gpu': 1}; it must be a mapping of text to text"),
        ({"labels": ["gpu"]}, r"scaled: labels is \['gpu'\]; it must be a mapping of text to text"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        scaled.options(**options)


def test_a_timeout_may_be_any_number() -> None:
    made = scaled.options(queue_timeout=1.5, run_timeout=2, priority=1, max_attempts=0, node_id="", labels={})
    assert made.call_options["run_timeout"] == 2


def test_a_method_is_refused_where_it_is_decorated() -> None:
    def run(self: object) -> None: ...

    run.__qualname__ = "Machine.run"  # as in a class of a module
    with pytest.raises(InvalidInput, match=r"Machine\.run is defined inside a class, where no actor finds it"):
        task(run)
