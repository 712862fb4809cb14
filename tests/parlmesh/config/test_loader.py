import contextlib
import os
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr, ValidationError, model_validator

from parlmesh.config import Config, ListenConfig, LogConfig, MetricsConfig, effective, load, to_yaml
from parlmesh.errors import ConfigError


class Training(Config):
    seed: int = Field(default=0, ge=0)
    rate: float = Field(default=0.001, gt=0, le=1)
    goal: float | None = None
    algorithm: Literal["ppo", "vtrace"] = "ppo"
    tags: tuple[str, ...] = ()
    resume: bool = True

    @model_validator(mode="after")
    def _seed_of_vtrace(self) -> "Training":
        if self.algorithm == "vtrace" and self.seed == 13:
            raise ValueError("vtrace and seed 13 do not go together")
        return self


class Node(Config):
    name: str
    slots: int = Field(default=1, ge=1, le=64)


class Fleet(Config):
    listen: ListenConfig = ListenConfig(port=50052, drain_seconds=2.0)
    metrics: MetricsConfig = MetricsConfig(port=9102)
    log: LogConfig = LogConfig()
    training: Training = Training()
    backup: Training | None = None
    nodes: tuple[Node, ...] = ()
    zones: dict[str, Node] = Field(default_factory=dict)
    token: SecretStr | None = None
    home: Path = Path("runs")


class Needy(Config):
    address: str = Field(min_length=3)


def loaded(
    tmp_path: Path | None = None, text: str | None = None, *overrides: str, environment: dict[str, str] | None = None
) -> Fleet:
    file = None
    if tmp_path is not None and text is not None:
        file = tmp_path / "fleet.yaml"
        file.write_text(text)
    return load(Fleet, file=file, overrides=overrides, environment=environment or {}, prefix="PARLMESH_FLEET")


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(None, None, *overrides)
    return error.value.message


def complaint_about(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, text)
    return error.value.message


def test_no_settings_give_the_defaults() -> None:
    assert loaded() == Fleet()


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    text = "training: {seed: 1, rate: 0.1, algorithm: vtrace}"
    environment = {"PARLMESH_FLEET__TRAINING__SEED": "2", "PARLMESH_FLEET__TRAINING__RATE": "0.2"}
    config = loaded(tmp_path, text, "training.seed=3", environment=environment)
    assert (config.training.seed, config.training.rate, config.training.algorithm) == (3, 0.2, "vtrace")


def test_giving_one_key_of_a_section_keeps_what_the_model_set_in_the_others(tmp_path: Path) -> None:
    for config in (
        loaded(None, None, "listen.host=0.0.0.0"),
        loaded(None, None, environment={"PARLMESH_FLEET__LISTEN__HOST": "0.0.0.0"}),
        loaded(tmp_path, "listen: {host: 0.0.0.0}"),
    ):
        assert config.listen == ListenConfig(host="0.0.0.0", port=50052, drain_seconds=2.0)


def test_variables_of_other_programs_are_left_alone() -> None:
    environment = {"PARLMESH_FLEETING__X": "1", "PARLMESH_FLEET": "1", "PARLMESH_FLEET_X": "1", "PATH": "/bin"}
    assert loaded(environment=environment) == Fleet()


def test_an_unknown_variable_with_the_prefix_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="environment variable PARLMESH_FLEET__TRAINING__SED: unknown key"):
        loaded(environment={"PARLMESH_FLEET__TRAINING__SED": "1"})


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.seed=-1", "training.seed must be >= 0, got -1"),
        ("training.rate=2", "training.rate must be > 0 and <= 1, got 2"),
        ("training.rate=.nan", "training.rate must be a finite number, got NaN"),
        ("training.rate=.inf", "training.rate must be a finite number, got Infinity"),
        ("training.goal=.inf", "training.goal must be a finite number, got Infinity"),
        ("training.seed=1.5", "training.seed must be a whole number >= 0, got 1.5"),
        ("training.seed=many", 'training.seed must be a whole number >= 0, got "many"'),
        ("training.seed=", "training.seed must be a whole number >= 0, got null"),
        ("training.resume=perhaps", 'training.resume must be true or false, got "perhaps"'),
        ("training.algorithm=dqn", 'training.algorithm must be one of ppo, vtrace, got "dqn"'),
        ("training.tags=3", "training.tags must be a list, got 3"),
        ("training=3", "training must be a section of keys, got 3"),
        ("metrics.port=70000", "metrics.port must be >= 0 and <= 65535, got 70000"),
        ("listen.host=", 'listen.host must have at least 1 characters, got ""'),
        ("nodes=[{name: a, slots: 0}]", "nodes[0].slots must be >= 1 and <= 64, got 0"),
        ("nodes=[{slots: 2}]", "nodes[0].name is required: text"),
        ("zones={north: {name: a, slots: 99}}", "zones.north.slots must be >= 1 and <= 64, got 99"),
        ("backup.seed=-2", "backup.seed must be >= 0, got -2"),
        ("training.seed", '--set takes key=value, got "training.seed"'),
        ("=3", '--set takes key=value, got "=3"'),
    ],
)
def test_a_bad_value_is_one_sentence_with_the_key_the_range_and_the_value(override: str, sentence: str) -> None:
    assert complaint(override) == sentence


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("traning.seed=1", 'unknown key "traning" (did you mean "training"?)'),
        ("training.sed=1", 'unknown key "training.sed" (did you mean "training.seed"?)'),
        ("LOG=1", 'unknown key "LOG" (did you mean "log"?)'),
        ("seed=1", 'unknown key "seed" (did you mean "training.seed" or "backup.seed"?)'),
        ("log.colour=1", 'unknown key "log.colour" (known keys: log.format, log.level)'),
    ],
)
def test_an_unknown_key_names_the_nearest_known_ones(tmp_path: Path, override: str, hint: str) -> None:
    assert complaint(override) == f"--set {override.partition('=')[0]}: {hint}"
    keys, _, value = override.partition("=")
    content: object = int(value)
    for key in reversed(keys.split(".")):
        content = {key: content}
    assert complaint_about(tmp_path, yaml.safe_dump(content)) == hint


def test_an_unknown_key_inside_a_list_is_named_with_its_place(tmp_path: Path) -> None:
    text = "nodes: [{name: a}, {name: b, slts: 2}]"
    assert complaint_about(tmp_path, text) == 'unknown key "nodes[1].slts" (did you mean "nodes[1].slots"?)'


def test_a_check_of_the_model_speaks_for_itself() -> None:
    assert (
        complaint("training.algorithm=vtrace", "training.seed=13") == "training: vtrace and seed 13 do not go together"
    )


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    text = "training: {seed: -1, rate: 0}\nlog: {level: loud}"
    assert complaint_about(tmp_path, text) == (
        'log.level must be one of debug, info, warning, error, got "loud"; '
        "training.seed must be >= 0, got -1; training.rate must be > 0 and <= 1, got 0"
    )


def test_a_secret_is_not_taken_from_the_command_line() -> None:
    with pytest.raises(ConfigError, match="PARLMESH_FLEET__TOKEN") as error:
        loaded(None, None, "token=hunter2")
    assert "hunter2" not in str(error.value)
    assert "process list" in str(error.value)
    given = loaded(environment={"PARLMESH_FLEET__TOKEN": "hunter2"}).token
    assert given is not None
    assert given.get_secret_value() == "hunter2"


def test_a_bad_secret_is_not_shown(tmp_path: Path) -> None:
    message = complaint_about(tmp_path, "token: [hunter2]")
    assert "hunter2" not in message
    assert message == "token must be text, or null, got ***"


def test_a_long_value_is_cut() -> None:
    assert len(complaint(f"training.algorithm={'x' * 10_000}")) < 200


def test_text_is_taken_as_written() -> None:
    config = loaded(None, None, "home=on", "log.format=pretty", environment={"PARLMESH_FLEET__TOKEN": "007"})
    assert config.token is not None
    assert (config.token.get_secret_value(), config.home) == ("007", Path("on"))


def test_null_empties_what_may_be_empty() -> None:
    config = loaded(None, None, "metrics.port=null", "token=", "backup=null")
    assert (config.metrics.port, config.token, config.backup) == (None, None, None)


def test_an_optional_section_can_be_set_key_by_key() -> None:
    assert loaded(None, None, "backup.seed=4").backup == Training(seed=4)


def test_numbers_in_exponent_form_are_numbers() -> None:
    assert loaded(None, None, "training.rate=1e-4").training.rate == 1e-4


def test_a_section_left_empty_in_the_file_is_its_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "training:\nlisten:\n") == Fleet()


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert loaded(tmp_path, "# nothing\n") == Fleet()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("training: [", "is not valid YAML"),
        ("- a\n- b", "must hold a mapping of keys, got list"),
        ("training:\n  seed: 1\n  rate: 0.1\n  seed: 2\n", 'line 4: key "seed" is given twice'),
        ("training: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("[" * 5000, "is not valid YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, text: str, part: str) -> None:
    message = complaint_about(tmp_path, text)
    assert str(tmp_path) in message
    assert part in message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/none.yaml: No such file"):
        load(Fleet, file=tmp_path / "none.yaml", prefix="P")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(Fleet, file=file, prefix="P")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.touch()
    os.truncate(file, 2 * 1024 * 1024)
    with pytest.raises(ConfigError, match="larger than 1048576 bytes"):
        load(Fleet, file=file, prefix="P")


def test_a_required_key_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^address is required: text$"):
        load(Needy, prefix="P")


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        loaded().training.seed = 3


def test_the_effective_configuration_masks_secrets_and_only_them() -> None:
    secret = loaded(environment={"PARLMESH_FLEET__TOKEN": "hunter2"})
    shown = effective(secret)
    assert shown["token"] == "***"
    assert effective(loaded())["token"] is None
    assert "hunter2" not in to_yaml(secret)
    assert shown["home"] == "runs"
    assert shown["listen"]["port"] == 50052


@given(
    seed=st.integers(min_value=0, max_value=2**70),
    rate=st.floats(min_value=0, max_value=1, exclude_min=True),
    tags=st.lists(st.text(max_size=20), max_size=4),
    home=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
)
def test_the_printed_configuration_loads_again_as_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float, tags: list[str], home: str
) -> None:
    config = Fleet(training=Training(seed=seed, rate=rate, tags=tuple(tags)), home=Path(home))
    file = tmp_path_factory.mktemp("config") / "fleet.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    assert load(Fleet, file=file, prefix="P") == config


def test_letters_of_every_language_are_printed_as_they_are() -> None:
    assert "home: ルーン/übung\n" in to_yaml(Fleet(home=Path("ルーン/übung")))


@given(st.text(max_size=60))
def test_no_override_can_raise_anything_but_a_config_error(text: str) -> None:
    for override in (text, f"training.seed={text}", f"training.rate={text}", f"nodes={text}", f"{text}=1"):
        with contextlib.suppress(ConfigError):
            loaded(None, None, override)


def test_aliases_that_stand_for_far_more_than_the_file_has_are_refused(tmp_path):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 20)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=r"bomb\.yaml has aliases that stand for more than 1000000 values"):
        load(Fleet, file=file, prefix="TEST")


class Steps(Config):
    learning_rate: float = 0.1


class Learning(Config):
    q_learning: Steps = Steps()
    ppo: Steps = Steps()


def test_a_key_of_another_section_is_nearer_than_one_spelt_alike() -> None:
    with pytest.raises(ConfigError, match=r'did you mean "q_learning\.learning_rate" or "ppo\.learning_rate"\?'):
        load(Learning, overrides=["learning_rate=1"], environment={}, prefix="PARLMESH_LEARNER")
