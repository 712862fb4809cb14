import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field, SecretStr

from parlmesh.config import Config, ListenConfig, parse_arguments


class Training(Config):
    seed: int = Field(default=0, ge=0)
    """Seeds every stream
    of random numbers."""


class Learner(Config):
    listen: ListenConfig = ListenConfig(port=50052)
    training: Training = Training()
    secret: SecretStr = SecretStr("hunter2")
    name: str | None = None
    fast: bool = False


class Needy(Config):
    address: str
    """Where to go."""


def parse(*argv: str) -> Learner:
    return parse_arguments("learner", Learner, argv, description="Trains.")


def test_the_file_and_set_and_environment_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "l.yaml"
    file.write_text("listen: {host: localhost}")
    monkeypatch.setenv("PARLMESH_LEARNER__NAME", "ada")
    config = parse("--config", str(file), "--set", "training.seed=3", "--set", "listen.port=1")
    assert (config.listen.host, config.listen.port, config.training.seed, config.name) == ("localhost", 1, 3, "ada")


def test_help_lists_every_key_with_default_range_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--help")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "usage: parlmesh-learner" in text
    assert "Trains." in text
    assert "listen.port: a whole number >= 0 and <= 65535 (default 50052)" in text
    assert "training.seed: a whole number >= 0 (default 0)\n      Seeds every stream of random numbers." in text
    assert "name: text, or null (default null)" in text
    assert "fast: true or false (default false)" in text
    assert "PARLMESH_LEARNER__SECTION__KEY" in text
    assert "hunter2" not in text


def test_help_says_what_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments("actor", Needy, ["--help"])
    assert "address: text (required)" in capsys.readouterr().out


def test_print_config_is_yaml_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--print-config", "--set", "training.seed=7")
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "training:\n  seed: 7\n" in text
    assert "secret: '***'" in text


def test_a_bad_value_ends_with_2_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--set", "training.seed=-1")
    assert end.value.code == 2
    assert capsys.readouterr().err == "parlmesh-learner: training.seed must be >= 0, got -1\n"


def test_an_unknown_flag_ends_with_2() -> None:
    with pytest.raises(SystemExit) as end:
        parse("--sed", "3")
    assert end.value.code == 2


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse("--version")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("parlmesh-learner ")


def test_services_read_their_settings_before_numpy_can_take_every_core() -> None:
    code = (
        "import sys, scheduler.__main__, learner.__main__, actor.__main__\n"
        "heavy = {'grpc', 'google', 'cryptography', 'numpy', 'torch', 'gymnasium'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_configuration_and_security_settings_import_neither_grpc_nor_cryptography() -> None:
    code = (
        "import sys, parlmesh.config, parlmesh.security\n"
        "heavy = {'grpc', 'google', 'cryptography', 'jwt', 'prometheus_client', 'numpy', 'torch', 'asyncio'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
