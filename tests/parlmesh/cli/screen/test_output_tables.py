"""Tables fit where they are shown."""

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


LONG_ID = "client-host-12345-7f3a2b1c-000000001"


def test_a_table_that_is_too_wide_keeps_names_and_figures_whole_and_cuts_no_word_in_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [[LONG_ID, "parlmesh.worlds.evaluation", "running", "1,234,567", "the file of the node is not there"]]
    print_table(["task", "kind", "state", ">steps", "remark"], rows, nothing="")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    (row,) = [line for line in lines if LONG_ID in line]
    assert row.split()[:4] == [LONG_ID, "parlmesh…", "running", "1,234,567"]
    told = " ".join(line[row.index("1,234,567") + 9 :].strip() for line in lines[lines.index(row) :]).strip()
    assert told == "the file of the node is not there"


def test_a_name_wider_than_the_terminal_is_one_line_that_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_table(["task", "state", ">steps"], [[LONG_ID, "running", "1"]], nothing="")
    (row,) = [line for line in capsys.readouterr().out.splitlines() if LONG_ID in line]
    assert row.split() == [LONG_ID, "running", "1"]


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


def test_an_empty_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
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
    # Text stays text, and a duration keeps its unit.
    task = Task(spec=TaskSpec(task_id="12", kind="noop"))
    task.spec.run_timeout.seconds = 9
    shown = fields_of(task)["spec"]
    assert (shown["task_id"], shown["run_timeout"]) == ("12", "9s")
