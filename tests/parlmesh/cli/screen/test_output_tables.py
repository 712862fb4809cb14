"""Tables that fit where they are shown."""

import hashlib

import pytest

from parlmesh.cli.screen.live_table import console
from parlmesh.cli.screen.output_tables import fields_of, print_table, say
from parlmesh.v1.model_service_pb2 import Model
from parlmesh.v1.scheduler_service_pb2 import Actor, GetStatisticsResponse
from parlmesh.v1.task_pb2 import Task, TaskSpec

COLUMNS = ["actor", ">slots", "heartbeat?", "kinds?"]
ROWS = [["actor-0", "2", "0.1 s ago", ", ".join(f"kind-{index}" for index in range(12))]]


@pytest.mark.parametrize(("width", "shown"), [(200, {"kinds", "heartbeat"}), (80, {"heartbeat"}), (20, set())])
def test_a_narrow_terminal_loses_optional_columns_from_the_right(
    width: int, shown: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(COLUMNS, ROWS, nothing="")
    text = capsys.readouterr().out
    assert {word for word in ("kinds", "heartbeat") if word in text} == shown
    assert all(len(line) <= width for line in text.splitlines())
    assert "actor-0" in text


def test_a_row_in_a_pipe_is_one_line_however_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(COLUMNS, ROWS, nothing="")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "actor-0" in line]
    assert "kind-11" in row


def test_names_are_not_read_as_markup(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table(["actor"], [["[red]x[/red]"]], nothing="")
    assert "[red]x[/red]" in capsys.readouterr().out


def test_nothing_to_show_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [], nothing="no actor is connected")
    assert capsys.readouterr().out == "no actor is connected\n"


NASTY = "x\x1b[31m\x9b2J\u202egnp\u2028"
CALM = "x\\x1b[31m\\x9b2J\\u202egnp\\u2028"


def test_no_name_moves_the_cursor_or_turns_the_text_around(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_table(["actor"], [[NASTY]], nothing="")
    say(f"{NASTY}\nsecond line")
    console().print(f"{NASTY}[bold]", soft_wrap=True)
    text = capsys.readouterr().out
    assert text.count(CALM) == 3
    assert f"{CALM}\nsecond line\n" in text
    assert f"{CALM}[bold]\n" in text
    assert "\x1b" not in text
    assert text.replace("\n", "").isprintable()


def test_digests_are_hexadecimal_wherever_they_are_printed() -> None:
    digest = hashlib.sha256(b"weights").digest()
    assert fields_of(Model(digest=digest))["digest"] == digest.hex()


def test_counters_are_numbers_wherever_they_stand() -> None:
    statistics = fields_of(GetStatisticsResponse(completed_tasks=1 << 53, queued_by_priority={"low": 3}))
    assert statistics["completed_tasks"] == 1 << 53
    assert statistics["queued_by_priority"] == {"low": 3}
    assert fields_of(Actor(actor_id="a", completed_tasks=7, incarnation=3))["completed_tasks"] == 7
    # What is text stays so, and a span keeps its unit.
    task = Task(spec=TaskSpec(task_id="12", kind="noop"))
    task.spec.run_timeout.seconds = 9
    shown = fields_of(task)["spec"]
    assert (shown["task_id"], shown["run_timeout"]) == ("12", "9s")
