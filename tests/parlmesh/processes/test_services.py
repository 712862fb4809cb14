from pathlib import Path

import yaml

from parlmesh.processes import service_command, write_settings


def test_a_service_is_started_with_its_file_and_overrides() -> None:
    command = service_command("actor", Path("runs/one/actor-0.yaml"), "incarnation=2")
    assert command[1] == "-m"
    assert command[2].removeprefix("parlmesh.") == "actor"
    assert command[3:] == ["--config", "runs/one/actor-0.yaml", "--set", "incarnation=2"]


def test_settings_are_written_whole(tmp_path: Path) -> None:
    write_settings(tmp_path / "deep" / "a.yaml", {"b": {"c": 1}})
    assert yaml.safe_load((tmp_path / "deep" / "a.yaml").read_text()) == {"b": {"c": 1}}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.yaml"]
