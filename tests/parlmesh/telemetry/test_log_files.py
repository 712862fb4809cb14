import json
import os
from pathlib import Path

from parlmesh.telemetry.log_files import LogFile, LogFolder, follow, line_of, tail


def write(folder: Path, run: str, process: str, *lines: str, at: float = 1000.0) -> Path:
    path = folder / run / "logs" / f"{process}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    os.utime(path, (at, at))
    return path


def event(time: str, name: str, **fields: object) -> str:
    return json.dumps({"time": time, "level": "info", "service": "actor", "logger": "x", "event": name, **fields})


def test_the_run_that_wrote_last_is_first_and_names_are_found_in_it(tmp_path: Path) -> None:
    write(tmp_path, "old", "actor-0", event("1", "a"), at=1000)
    write(tmp_path, "new", "actor-0", event("2", "b"), at=2000)
    write(tmp_path, "new", "learner", event("3", "c"), at=1500)
    folder = LogFolder(tmp_path)
    assert [(file.run_id, file.process) for file in folder.files()] == [
        ("new", "actor-0"),
        ("new", "learner"),
        ("old", "actor-0"),
    ]
    assert [file.run_id for file in folder.of("actor-0")] == ["new"]
    assert [file.process for file in folder.of("old")] == ["actor-0"]
    assert folder.of("nobody") == []
    assert [file.process for file in LogFolder(tmp_path / "new").files()] == ["actor-0", "learner"]


def test_lines_of_all_processes_come_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path, "r", "actor-0", event("1", "first", task_id="t-1"), event("3", "third", task_id="t-1"))
    write(tmp_path, "r", "actor-1", event("2", "second", task_id="t-1"), event("4", "fourth"))
    found = LogFolder(tmp_path).lines(contains="t-1", most=2)
    assert [line.text for line in found] == ["second task_id=t-1", "third task_id=t-1"]


def test_a_line_is_shown_as_people_read_it_and_harms_no_terminal() -> None:
    text = json.dumps({"time": "1", "level": "error", "event": "lost", "why": "\x1b[2J", "n": 2, "exception": "T\nE"})
    line = line_of("actor-0", text)
    assert (line.level, line.text, line.detail) == ("error", r"lost why=\x1b[2J n=2", "T\nE")
    assert line_of("actor-0", "Segmentation fault\x07").text == r"Segmentation fault\x07"
    assert line_of("actor-0", "[1, 2]").text == "[1, 2]"


def test_following_gives_whole_lines_only(tmp_path: Path) -> None:
    path = write(tmp_path, "r", "actor-0", "one")
    file = LogFile("r", "actor-0", path)
    with path.open("a") as log:
        log.write("half")
    assert [(line.text, offset) for line, offset in follow(file, 0)] == [("one", 4)]
    with path.open("a") as log:
        log.write(" and half\n")
    assert [line.text for line, _ in follow(file, 4)] == ["half and half"]
    assert [line.text for line in tail(file, most=1)] == ["half and half"]
