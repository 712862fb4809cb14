"""What `parlmesh.train` makes of its arguments before anything is started."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from parlmesh.api.train_arguments import environment_section, known_only_here, plain, plugin_sources, section_of
from parlmesh.errors import InvalidInput
from parlmesh.plugins import Plugin


class Corridor(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)


def test_a_class_is_named_for_the_other_processes_and_known_in_this_one() -> None:
    section, plugins = environment_section({"id": Corridor, "kwargs": {"length": 3}}, "")
    assert section == {"id": "test_train_arguments/Corridor", "kwargs": {"length": 3}}
    assert plugins == (f"{__name__}:Corridor",)
    assert gymnasium.spec(section["id"]).entry_point is Corridor


def test_a_class_of_the_program_is_found_in_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    main = ModuleType("__main__")
    main.__spec__, main.__file__ = None, str(tmp_path / "walk.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    mine = type("Corridor", (Corridor,), {"__module__": "__main__"})
    assert environment_section(mine, "") == ({"id": "walk/Corridor"}, (f"{tmp_path / 'walk.py'}:Corridor",))
    del main.__file__
    with pytest.raises(InvalidInput, match=r"Corridor is defined at a prompt or in a notebook.* put it into a module"):
        environment_section(mine, "")


def test_a_class_that_no_other_process_finds_is_refused() -> None:
    class Hidden(Corridor): ...

    with pytest.raises(InvalidInput, match="is defined inside a function or a class"):
        environment_section(Hidden, "")
    with pytest.raises(InvalidInput, match="the class Corridor, but the learner at hub:50052 makes its own"):
        environment_section(Corridor, "hub:50052")


def test_numbers_of_numpy_are_settings_and_functions_are_refused_by_name() -> None:
    given = {"seed": np.int64(3), "ppo": {"clip": np.float32(0.5)}, "hidden": np.array([8, 8]), "layers": (1, 2)}
    found = plain(given, "training")
    assert found == {"seed": 3, "ppo": {"clip": 0.5}, "hidden": [8, 8], "layers": [1, 2]}
    assert [type(each) for each in (found["seed"], found["ppo"]["clip"])] == [int, float]
    with pytest.raises(InvalidInput, match=r"^training\.ppo\.learning_rate is a function; settings are numbers"):
        plain({"ppo": {"learning_rate": lambda rest: rest}}, "training")


def test_keys_of_settings_may_have_dots() -> None:
    given = {"ppo.learning_rate": 0.1, "ppo": {"clip": 0.2}, "environment.wrappers": {"A.b": {}}}
    found = section_of(given)
    assert found == {"ppo": {"learning_rate": 0.1, "clip": 0.2}, "environment": {"wrappers": {"A.b": {}}}}


def test_a_plug_in_itself_is_not_its_name() -> None:
    with pytest.raises(InvalidInput, match="plugins has a Plugin; it must be named for the other processes"):
        plugin_sources([Plugin()])
    assert plugin_sources(["things.py:plugin", "shop"]) == [f"{Path('things.py').resolve()}:plugin", "shop"]


def test_an_id_of_this_program_alone_is_explained() -> None:
    gymnasium.register("Walk-v7", entry_point=Corridor)  # type: ignore[arg-type]
    assert "if you pass its class, or 'module:Walk-v7'" in known_only_here("Walk-v7")
    assert known_only_here("Walk-v8") == ""
