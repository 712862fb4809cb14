from datetime import datetime
from pathlib import Path

import pytest

from parlmesh.config import load
from parlmesh.errors import ConfigError
from parlmesh.local.process_configs import (
    RunPaths,
    UpConfig,
    actor_settings,
    fixed_ports,
    fresh_run_id,
    learner_settings,
    read_incarnations,
    scheduler_settings,
    up_settings,
)
from parlmesh.processes import write_settings

PATHS = RunPaths(Path("runs/one"))


def config(*overrides: str, **environment: str) -> UpConfig:
    return load(UpConfig, overrides=overrides, environment=environment, prefix="PARLMESH_UP")


def test_a_run_id_names_environment_and_time() -> None:
    assert fresh_run_id("ALE/Pong-v5", datetime(2026, 1, 2, 3, 4, 5)) == "ale-pong-v5-20260102-030405"
    assert fresh_run_id("!!!", datetime(2026, 1, 2, 3, 4, 5)) == "run-20260102-030405"


def test_the_learner_is_told_where_the_scheduler_is_and_which_run_it_trains() -> None:
    settings = learner_settings(config("training.seed=3"), PATHS, 50052, "127.0.0.1:50051")
    assert settings["mode"] == "fleet"
    assert settings["scheduler"] == "127.0.0.1:50051"
    assert settings["training"] == {"seed": 3, "slots": 2}
    assert (settings["run_id"], settings["run_dir"]) == ("one", "runs/one")


def test_without_a_scheduler_the_learner_is_serial() -> None:
    settings = learner_settings(config(), PATHS, 50052, "")
    assert settings["mode"] == "serial"
    assert "scheduler" not in settings


def test_the_default_goal_is_not_asked_of_another_environment() -> None:
    other = config("training.environment.id=Acrobot-v1")
    assert learner_settings(other, PATHS, 1, "")["training"]["goal_return"] is None
    own = config("training.environment.id=Acrobot-v1", "training.goal_return=-100")
    assert learner_settings(own, PATHS, 1, "")["training"]["goal_return"] == -100
    assert "goal_return" not in learner_settings(config(), PATHS, 1, "")["training"]


def test_the_learner_knows_how_many_slots_will_collect():
    many = config("actors=3", "actor.slots=4")
    assert learner_settings(many, PATHS, 1, "127.0.0.1:50051")["training"]["slots"] == 12
    chosen = config("actors=3", "training.slots=0")
    assert learner_settings(chosen, PATHS, 1, "127.0.0.1:50051")["training"]["slots"] == 0
    assert "slots" not in learner_settings(many, PATHS, 1, "")["training"]


def test_keys_of_a_service_win_over_what_up_chooses() -> None:
    settings = scheduler_settings(config("scheduler.store.kind=memory", "scheduler.listen.drain_seconds=1"), PATHS, 7)
    assert settings["store"]["kind"] == "memory"
    assert settings["listen"] == {"host": "127.0.0.1", "port": 7, "drain_seconds": 1}


def test_every_process_has_a_metrics_port_of_its_own() -> None:
    ports = fixed_ports(config("actors=3"))
    assert ports == {
        "learner": 50052,
        "learner metrics": 9102,
        "scheduler": 50051,
        "scheduler metrics": 9101,
        "actor-0 metrics": 9103,
        "actor-1 metrics": 9104,
        "actor-2 metrics": 9105,
    }
    assert actor_settings(config(), 1, "s", "l")["metrics"] == {"port": 9104}


def test_ports_from_the_system_need_not_be_free_beforehand() -> None:
    free = config("ports.scheduler=0", "ports.learner=0", "ports.metrics=0")
    assert fixed_ports(free) == {}
    assert actor_settings(free, 1, "s", "l")["metrics"] == {"port": 0}


def test_a_serial_run_needs_no_port_of_scheduler_and_actors() -> None:
    assert fixed_ports(config("serial=true")) == {"learner": 50052, "learner metrics": 9102}


@pytest.mark.parametrize("run_id", ["../up", "a/b", ".hidden", "with space"])
def test_a_run_id_that_is_not_a_plain_name_is_refused(run_id: str) -> None:
    with pytest.raises(ConfigError, match="run_id must match"):
        config(f"run_id={run_id}")


def test_what_is_written_for_a_resume_gives_the_same_settings_and_no_secret(tmp_path: Path) -> None:
    first = config("training.seed=3", "actors=4", PARLMESH_UP__SECURITY__TOKEN="hush")
    write_settings(tmp_path / "up.yaml", up_settings(first, "one"))
    assert "hush" not in (tmp_path / "up.yaml").read_text()
    again = load(UpConfig, file=tmp_path / "up.yaml", prefix="PARLMESH_UP")
    assert again.run_id == "one"
    assert (again.training, again.actors, again.security.token) == (first.training, 4, None)


def test_incarnations_are_remembered_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert read_incarnations(paths) == {}
    write_settings(paths.incarnations, {"actor-0": 3})
    assert read_incarnations(paths) == {"actor-0": 3}
    paths.incarnations.write_text("- what\n")
    with pytest.raises(ConfigError, match=r"incarnations\.yaml must map actor ids to whole numbers"):
        read_incarnations(paths)


def test_a_port_that_the_other_processes_would_not_dial_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"scheduler\.listen\.port is 50951, .*; set ports\.scheduler"):
        scheduler_settings(config("scheduler.listen.port=50951"), PATHS, 50051)
    with pytest.raises(ConfigError, match=r"learner\.listen\.port is 50952, .*; set ports\.learner"):
        learner_settings(config("learner.listen.port=50952"), PATHS, 50052, "")
    assert scheduler_settings(config("scheduler.listen.drain_seconds=1"), PATHS, 50051)["listen"]["port"] == 50051
