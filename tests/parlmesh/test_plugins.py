import importlib.metadata
import sys
from collections.abc import Mapping

import gymnasium
import pytest

from parlmesh import plugins
from parlmesh.errors import ConfigError
from parlmesh.plugins import Plugin, load_plugins


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a module into the current folder; a test's imports are forgotten after it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    before = set(sys.modules)
    plugins._loaded.cache_clear()

    def write_module(name, text):
        path = tmp_path / f"{name}.py"
        path.write_text("from parlmesh.plugins import Plugin\n" + text)
        return path

    yield write_module
    plugins._loaded.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith("plugged"):
            del sys.modules[name]


def test_nothing_is_loaded_when_nothing_is_asked_for():
    assert load_plugins(()) == Plugin()


def algorithms(name: str) -> Mapping[str, object]:
    return load_plugins([name]).algorithms


def test_a_module_beside_the_user_is_found_and_imported_once(write):
    write("plugged_a", "made = []\nplugin = Plugin(algorithms={'a': len})\nmade.append(1)\n")
    assert algorithms("plugged_a:plugin") == {"a": len}
    assert algorithms("plugged_a:plugin") == {"a": len}
    assert sys.modules["plugged_a"].made == [1]


def test_a_file_is_found_by_its_path(write, tmp_path):
    (tmp_path / "sub").mkdir()
    path = write("plugged_b", "plugin = Plugin(handlers={'h': object()})\n").rename(tmp_path / "sub" / "plugged_b.py")
    assert load_plugins([f"{path}:plugin"]).handlers.keys() == {"h"}


def test_an_installed_entry_point_is_loaded_only_when_it_is_named(write, monkeypatch):
    write("plugged_c", "plugin = Plugin(algorithms={'c': len})\n")
    entry = importlib.metadata.EntryPoint("c-plugin", "plugged_c:plugin", plugins.GROUP)
    monkeypatch.syspath_prepend(".")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [entry] if group == plugins.GROUP else [])
    load_plugins(())
    assert "plugged_c" not in sys.modules
    assert algorithms("c-plugin") == {"c": len}


@pytest.mark.parametrize(
    ("source", "text", "sentence"),
    [
        ("nowhere:plugin", "", "there is no module 'nowhere'"),
        ("nowhere.py:plugin", "", "there is no file nowhere.py"),
        ("unheard-of", "", r"'unheard-of' is not installed \(entry points of parlmesh.plugins: none\)"),
        (":plugin", "", "must be module:attribute"),
        ("plugged_x:other", "plugin = Plugin()\n", "plugged_x has no attribute 'other'"),
        ("plugged_x:plugin", "plugin = 3\n", "must be a parlmesh.plugins.Plugin or an environment class, got int"),
        ("plugged_x:plugin", "1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero"),
        ("plugged_x:plugin", "def (\n", "cannot be imported: SyntaxError"),
        ("plugged_x.py:plugin", "import plugged_nothing\n", "needs the module 'plugged_nothing'"),
        ("plugged_x:plugin", "plugin = Plugin(algorithms={'a': 3})\n", "algorithms 'a' must be callable, got int"),
        ("plugged_x:plugin", "plugin = Plugin(networks=[1])\n", "networks must be a mapping, got list"),
        ("plugged_x:plugin", "plugin = Plugin(handlers={3: 4})\n", "names of handlers must be text, got 3"),
        (
            "plugged_x:plugin",
            "plugin = Plugin(environments={'CartPole-v1': object})\n",
            "environment 'CartPole-v1' exists already",
        ),
        (
            "plugged_x:plugin",
            "plugin = Plugin(environments={'Plugged-v0': {'entry_point': object, 'colour': 1}})\n",
            "environment 'Plugged-v0' cannot be registered",
        ),
        ("plugged_x:plugin", "plugin = Plugin(networks={'mlp': len})\n", "network 'mlp' exists already"),
    ],
)
def test_a_plugins_errors_are_reported_in_one_sentence(write, monkeypatch, source, text, sentence):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    write("plugged_x", text)
    with pytest.raises(ConfigError, match=sentence):
        load_plugins([source])


def test_two_plugins_must_not_bring_the_same_name(write):
    write("plugged_d", "plugin = Plugin(algorithms={'same': len})\n")
    write("plugged_e", "plugin = Plugin(algorithms={'same': max})\n")
    with pytest.raises(ConfigError, match="'plugged_d:plugin' and 'plugged_e:plugin' both define algorithms 'same'"):
        load_plugins(["plugged_d:plugin", "plugged_e:plugin"])


def test_a_file_that_an_installed_module_hides_is_refused(write, tmp_path):
    write("json", "plugin = Plugin()\n")
    with pytest.raises(ConfigError, match="is hidden by the module of that name"):
        load_plugins([f"{tmp_path / 'json.py'}:plugin"])


def test_a_registered_environment_can_be_made(write):
    text = "import gymnasium\nclass E(gymnasium.Env):\n    pass\nplugin = Plugin(environments={'PluggedIn-v0': E})\n"
    write("plugged_f", text)
    try:
        load_plugins(["plugged_f:plugin"])
        found = gymnasium.spec("PluggedIn-v0").entry_point
        assert isinstance(found, type)
        assert found.__name__ == "E"
    finally:
        gymnasium.registry.pop("PluggedIn-v0", None)


def test_an_environment_class_is_a_plug_in_named_after_its_module(write):
    text = "class Hall:\n    def reset(self): ...\n    def step(self, action): ...\n"
    path = write("plugged_hall", text)
    (name,) = load_plugins([f"{path}:Hall"]).environments
    assert name == "plugged_hall/Hall"
    assert getattr(gymnasium.registry.pop(name).entry_point, "__name__", "") == "Hall"


def test_a_program_is_imported_up_to_its_first_run(write):
    path = write("plugged_program", "import parlmesh\nplugin = Plugin()\nparlmesh.train('CartPole-v1')\n1 / 0\n")
    assert load_plugins([f"{path}:plugin"]) == Plugin()
    assert sys.modules["plugged_program"].plugin == Plugin()
