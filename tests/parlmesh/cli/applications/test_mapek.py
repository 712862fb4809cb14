"""`parlmesh mapek`, as its user sees it."""

import pytest
from typer.testing import CliRunner

from parlmesh.cli.__main__ import app
from parlmesh.errors import InvalidInput


@pytest.mark.parametrize("command", ["once", "run"])
def test_a_file_that_is_not_a_policy_is_named_before_anything_is_started(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my planner.json").write_text("{}")
    result = CliRunner().invoke(app, ["mapek", command, "--policy", "my planner.json"])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.message.startswith("my planner.json is not a policy: ")
    assert [path.name for path in tmp_path.iterdir()] == ["my planner.json"]
