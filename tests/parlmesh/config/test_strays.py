"""Settings that would be silently ignored: misspelt variables, and keys of the other side."""

import pytest

from actor.config import ActorConfig
from parlmesh.config import parse_arguments
from parlmesh.config.validation_errors import stray_variables
from scheduler.config import SchedulerConfig


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("PARLMESH_SCHEDLER__LISTEN__PORT", "did you mean PARLMESH_SCHEDULER__LISTEN__PORT?"),
        ("PARLMESH_ACTORS__SLOTS", "did you mean PARLMESH_ACTOR__SLOTS?"),
        ("PARLMESH_QQQQQQQQQQ__A", "known are PARLMESH_ACTOR, "),
    ],
)
def test_a_variable_that_nobody_reads_is_named(name: str, hint: str) -> None:
    (sentence,) = stray_variables({name: "1", "PATH": "/bin"}, "PARLMESH_ACTOR")
    assert sentence.startswith(f"environment variable {name} is not read by any process; {hint}")


def test_variables_of_the_fleet_are_not_strays() -> None:
    known = ("ACTOR__SLOTS", "SCHEDULER__LISTEN__PORT", "LEARNER__RUN_DIR", "UP__ACTORS", "MINE__A", "TOKEN_FILE", "CA")
    assert stray_variables({f"PARLMESH_{name}": "1" for name in known}, "PARLMESH_MINE") == []


def test_a_process_warns_of_a_misspelt_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARLMESH_ACTR__SLOTS", "4")
    assert parse_arguments("actor", ActorConfig, []).slots == 1
    assert "warning: environment variable PARLMESH_ACTR__SLOTS is not read by any process" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["token", "token_file"])
def test_keys_of_callers_are_refused_on_a_scheduler(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PARLMESH_SCHEDULER__SECURITY__{key.upper()}", "/t")
    with pytest.raises(SystemExit) as end:
        parse_arguments("scheduler", SchedulerConfig, [])
    assert end.value.code == 2
    assert f"security.{key} is for callers, and a scheduler makes no calls" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["tokens=/t", "insecure=true"])
def test_keys_of_servers_are_refused_on_an_actor(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_arguments("actor", ActorConfig, ["--set", f"security.{key}"])
    assert end.value.code == 2
    assert "is for servers, and nothing calls an actor" in capsys.readouterr().err
